from signets import checks


def test_luhn():
  assert checks.luhn('79927398713') is True
  assert checks.luhn('79927398710') is False
  assert checks.luhn('0') is True


def test_luhn_digit():
  assert checks.luhn_digit('7992739871') == '3'
  assert checks.luhn_digit('1') == '8'


def test_isbn():
  assert checks.isbn('0-306-40615-2') is True
  assert checks.isbn('0-306-40615-3') is False
  assert checks.isbn('0-8044-2957-X') is True


def test_isbn_of_another_length():
  assert checks.isbn('030640615') is False
  assert checks.isbn('03064061522') is False


def test_parity():
  assert checks.parity('1011') == '10111'
  assert checks.parity('1001') == '10010'
  assert checks.parity('1001', even=False) == '10011'


def test_checksum():
  assert checks.checksum('ab') == 9924
  assert checks.checksum('ba') == 10180
  assert checks.checksum('') == 1
