from measures import render


def test_tidy():
  assert render.tidy(1.50) == '1.5'
  assert render.tidy(100.0) == '100'
  assert render.tidy(2.678) == '2.68'
  assert render.tidy(10, digits=0) == '10'


def test_best():
  assert render.best((1500.0, 'm')) == (1.5, 'km')
  assert render.best((0.5, 'm')) == (50.0, 'cm')
  assert render.best((-7200.0, 's')) == (-2.0, 'h')


def test_best_of_exactly_one():
  assert render.best((1000.0, 'g')) == (1.0, 'kg')
  assert render.best((60.0, 's')) == (1.0, 'min')


def test_write():
  assert render.write((12345.0, 'm')) == '12.35 km'
  assert render.write((12345.0, 'm'), digits=1) == '12.3 km'
  assert render.write((36.0, 'h')) == '1.5 d'


def test_clock():
  assert render.clock(11109) == '3:05:09'
  assert render.clock(65) == '1:05'
  assert render.clock(3600) == '1:00:00'
  assert render.clock(59.9) == '0:59'
