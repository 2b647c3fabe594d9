"""Tests of languages that are told by their commonest words."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.diagnosis import languages


class LanguagesTest(parameterized.TestCase):

  @parameterized.parameters(
      ('So we add what is left of the two, which gives 12.', 'English'),
      ('Nous avons donc une somme de 12, et les deux sont égales.', 'French'),
      ('Wir addieren die Zahlen, und das Ergebnis ist nicht 3.', 'German'),
      ('Entonces los números son iguales, y el resto es 3.', 'Spanish'),
      ('Quindi il resto è 3, e gli altri sono della somma.', 'Italian'),
      ('Então os números são iguais, e isso não é o resto.', 'Portuguese'),
      ('We tellen de getallen van het boek op, dus dat is 3.', 'Dutch'),
      ('Więc to nie jest suma, a reszta jest dla nas.', 'Polish'),
      ('x = 4 and y = 5', None),
      ('for x in the_list: return x', None),
      ('', None),
      ('Maria, Anna, Paris, Berlin', None),
  )
  def test_of(self, text, wanted):
    self.assertEqual(languages.of(text), wanted)


if __name__ == '__main__':
  absltest.main()
