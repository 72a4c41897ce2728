//! Units of measure: their dimension, and how many of its base unit they are.

use super::form::Form;
use super::rational::Rational;

/// A unit's dimension in base units, its size there, and its names. A name without a dimension (`apples`; `pounds`, which are money
/// or mass) is read and ignored. Symbols with a prefix have no entry of their own.
const UNITS: &str = "m 1 m meter meters metre metres; m 127/5000 in inch inches; m 381/1250 ft foot feet; m 1143/1250 yd yard yards;
    m 201168/125 mi mile miles; g 1 g gram grams; g 1000000 t tonne tonnes; g 45359237/100000 lb lbs; g 45359237/1600000 oz ounce ounces;
    s 1 s sec secs second seconds; s 60 min mins minute minutes; s 3600 h hr hrs hour hours; s 86400 day days; s 604800 wk week weeks;
    month 1 month months; month 12 yr yrs year years; m/s 1397/3125 mph; m/s 5/18 kph kmh; ° 1 degree degrees deg; rad 1 rad radian radians;
    m*m*m 1/1000 l L liter liters litre litres; m*m*m 1/1000000 cc; m*m*m 473176473/125000000000 gal gallon gallons;
    m*m*m 473176473/2000000000000 cup cups; $ 1 $ dollar dollars usd; $ 1/100 ¢ cent cents; € 1 € euro euros eur; £ 1 £ gbp;
    ¥ 1 ¥ yen jpy; ₹ 1 ₹ rupee rupees inr; chf 1 chf franc francs; N 1 N newton newtons; J 1 J joule joules; W 1 W watt watts;
    Pa 1 pa pascal pascals; V 1 V volt volts; A 1 A amp amps ampere amperes; 1/s 1 hz hertz; mol 1 mol mole moles;
    1 1 pound pounds unit units percent pct percentage ways way points times students apples";

/// Prefixes of the units in symbols and in words, with their powers of ten.
const PREFIXES: &[(&str, &str, i128)] =
    &[("k", "kilo", 3), ("c", "centi", -2), ("m", "milli", -3), ("d", "deci", -1), ("M", "mega", 6), ("G", "giga", 9)];

/// Units that may stand without `\text`, as no product of variables would be read in their place.
const BARE: &str = "cm mm km ft kg mg ml lb lbs oz mph kph hr hrs min mins sec secs inch inches foot feet yard yards mile \
    miles meter meters metre metres unit units square cubic sq cu per degree degrees deg radian radians rad dollar dollars \
    cent cents pound pounds ounce ounces gram grams liter liters second seconds minute minutes hour hours day days week \
    weeks month months year years people percent pct percentage ways way points times gallon gallons cup cups students \
    apples";

/// Currency signs, which stand before or after their number.
pub(super) fn is_currency(c: char) -> bool {
    matches!(c, '$' | '¢' | '€' | '£' | '¥' | '₹' | '₩' | '₽')
}

/// Whether a word without `\text` is a unit or belongs to one.
pub(super) fn is_bare(word: &str) -> bool {
    BARE.split_whitespace().any(|known| known == word)
}

/// The unit that words name, as a form of base units: `cm`, `square feet`, `miles per hour`, `m/s^2`; `None` if there is none.
/// Other words are left out (`cm of rope`), but not after `per`.
pub(super) fn unit(words: &str) -> Option<Form> {
    let (mut product, mut divides, mut power) = (None, false, 1);
    let spaced =
        words.replace('/', " per ").replace('²', "^2").replace('³', "^3").replace(['.', '·', '(', ')', ','], " ");
    let only = spaced.split_whitespace().count() == 1;
    for word in spaced.split_whitespace() {
        match word {
            "per" => divides = true,
            "square" | "sq" => power = 2,
            "cubic" | "cu" => power = 3,
            "in" if !only => {}
            _ => {
                let (name, exponent) = word.split_once('^').unwrap_or((word, "1"));
                let power = exponent.parse::<i128>().ok()?.checked_mul(std::mem::replace(&mut power, 1))?;
                match named(name) {
                    Some(form) => {
                        let power = Rational::integer(if std::mem::take(&mut divides) { -power } else { power });
                        let form = form.power(Form::number(power))?;
                        product = Some(product.unwrap_or(Form::number(Rational::ONE)).mul(form)?);
                    }
                    None if divides => return None,
                    None => {}
                }
            }
        }
    }
    product
}

/// The unit of one name, with or without a prefix. Case tells `mW` from `MW` and `a` from `A`.
fn named(name: &str) -> Option<Form> {
    let known = |name: &str| {
        let lower = if name.len() > 1 { name.to_lowercase() } else { name.to_owned() };
        UNITS.split(';').find_map(|entry| {
            let mut fields = entry.split_whitespace();
            let (dimension, size) = (fields.next()?, fields.next()?);
            fields.any(|known| known == name || known == lower).then_some((dimension, size))
        })
    };
    let prefixed = || {
        PREFIXES.iter().find_map(|(symbol, word, power)| {
            let symbol = name.strip_prefix(symbol).filter(|rest| rest.len() < 3 || *rest == "mol");
            let unit = known(symbol.or_else(|| name.strip_prefix(word))?)?;
            let plain = matches!(unit.1, "1" | "1/1000");
            plain.then_some((unit, Rational::integer(10).power(*power)?))
        })
    };
    let ((dimension, size), prefix) = known(name).map(|unit| (unit, Rational::ONE)).or_else(prefixed)?;
    let (size, of) = size.split_once('/').unwrap_or((size, "1"));
    let mut form = Form::number(prefix.mul(Rational::new(size.parse().ok()?, of.parse().ok()?)?)?);
    let (above, below) = dimension.split_once('/').unwrap_or((dimension, ""));
    for (bases, power) in [(above, 1), (below, -1)] {
        for base in bases.split('*').filter(|base| !matches!(*base, "" | "1")) {
            form = form.mul(Form::symbol(format!("⟨{base}⟩")).power(Form::number(Rational::integer(power)))?)?;
        }
    }
    Some(form)
}
