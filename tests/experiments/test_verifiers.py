"""Answers that mean the same have one code; answers that do not, do not."""

import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.sandbox import FunctionTests, ProgramTests, Verdict
from experiments.verifiers import CodeReward, answer_code, canonical, choice_reward, chosen, extract_answer, extract_code, math_reward
from experiments.verifiers.code import job_of, pack_tests
from experiments.verifiers.text import last_boxed

#: Ways to write one number; every class is another number, so all pairs across classes are inequivalent.
CLASSES = [
    [r"1/2", "0.5", ".5", r"\frac{1}{2}", r"\dfrac12", r"\tfrac{2}{4}", "2^{-1}", "0.50", r"\frac12", "$0.5$", r"\(1/2\)", "5e-1"],
    ["50", r"50\%", "50%", "50 percent", "$50", r"\$50.00", r"50^\circ", "50 degrees", "x = 50", r"50\text{ cm}", "+50", "50."],
    ["1000", "1,000", "1{,}000", r"1\,000", "1000.0", "10^{3}", "1e3", r"\$1,000", "1,000 dollars", "(1,000)"],
    ["-3/4", r"-\frac{3}{4}", r"\frac{-3}{4}", "-0.75", "−0.75", r"-\frac34"],
    ["7/2", "3.5", r"3\frac{1}{2}", "3 1/2", r"\frac{7}{2}", r"3\frac12"],
    ["1/3", r"\frac13", r"0.\overline{3}", r"\frac{2}{6}"],
    ["0.33", "33/100", r"\frac{33}{100}"],
    ["0", "-0", "0.0", r"\frac{0}{5}"],
    [r"2\sqrt{2}", r"2\sqrt2", r"\sqrt{8}", r"\sqrt 8", "sqrt(8)", r"\frac{4}{\sqrt{2}}", r"2\cdot\sqrt{2}", r"8^{1/2}"],
    [r"\frac{\sqrt{3}}{3}", r"\frac{1}{\sqrt{3}}", r"\frac1{\sqrt3}", r"\sqrt{\frac{1}{3}}"],
    [r"\frac{\pi}{2}", r"\pi/2", "pi/2", r"0.5\pi", r"\frac{1}{2}\pi", "π/2"],
    ["1.5707963", r"15707963/10000000"],
    [r"\{1,2\}", r"\{2, 1\}", r"\left\{1, 2\right\}", r"\{\frac{2}{2}, 2.0\}"],
    [r"\{1,2,3\}", r"\{3,2,1\}"],
    ["(2,1)", "(2, 1)", r"\left(2,1\right)", r"(2, \frac{3}{3})"],
    ["(1,2]", r"\left(1,2\right]", r"x \in (1,2]", r"(1, \frac{4}{2}]"],
    ["[1,2]", r"\left[1, 2\right]", "[1.0, 2]"],
    ["[1,2)", r"\left[1,2\right)"],
    [r"(1,2]\cup[3,4)", r"[3,4)\cup(1,2]"],
    ["x^2-1", "(x-1)(x+1)", "x^2 - 1", "-1+x^2", r"(x+1)\cdot(x-1)"],
    [r"\frac{x}{2}", "x/2", "0.5x", r"\frac{1}{2}x", r"\frac12 x"],
    ["x^2+2xy+y^2", "(x+y)^2", "y^2+2xy+x^2"],
    ["1+2i", "2i+1", "1 + 2i"],
    [r"\text{yes}", "yes", "Yes", r"\mathrm{yes}"],
    ["listen"],
    ["silent"],
    ["2^{2024}"],
    ["2^{2024}+1"],
    ["-50"],
    ["5"],
    ["500"],
    ["0.005"],
    [r"\sqrt{2}"],
    [r"\sqrt{3}"],
    [r"e^2", "e^{2}"],
    [r"\infty"],
    [r"-\infty"],
    [r"x>3", "3<x"],
    [r"x \ge 3", r"x\geq 3"],
    ["12:30"],
    [r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"],
    [r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}"],
]  # fmt: skip


def test_equivalent_forms_have_one_code_and_inequivalent_forms_do_not(capsys):
    codes = [[canonical(form) for form in forms] for forms in CLASSES]
    assert [dict(zip(f, c, strict=True)) for f, c in zip(CLASSES, codes, strict=True) if None in c or len(set(c)) > 1] == []
    firsts = [c[0] for c in codes]
    assert len(set(firsts)) == len(firsts)
    sizes = [len(f) for f in CLASSES]
    same = sum(n * (n - 1) // 2 for n in sizes)
    different = sum(sizes) * (sum(sizes) - 1) // 2 - same
    with capsys.disabled():
        print(f"\nanswer forms: {sum(sizes)} in {len(sizes)} classes, {same} equivalent and {different} inequivalent pairs")
    assert same > 250 and different > 7000


def test_codes_agree_with_math_verify_on_numbers():
    """math-verify's own comparison, to six digits, as an independent oracle for the numeric classes."""
    from math_verify import parse, verify

    forms = [
        f for forms in CLASSES[:7] for f in forms if "overline" not in f and "%" not in f and "3 1/2" not in f and not f.startswith("−")
    ]
    forms = [f for f in forms if not any(mark in f for mark in (",", "degrees", "percent", "e3", "e-1", "x =", "+50", r"\("))]
    parsed = {f: parse(f"${f.strip('$')}$", parsing_timeout=None) for f in forms}
    pairs = [(a, b) for a in forms for b in forms if parsed[a] and parsed[b]]
    assert len(pairs) > 400
    wrong = [(a, b) for a, b in pairs if verify(parsed[a], parsed[b], timeout_seconds=None) != (canonical(a) == canonical(b))]
    assert wrong == []


fractions = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4)


@st.composite
def writings(draw, value):
    """One way to write ``value``."""
    n, d = value.numerator, value.denominator
    k = draw(st.integers(1, 9))
    sign, m = ("-" if n < 0 else ""), abs(n)
    ways = [f"{n}/{d}", rf"{sign}\frac{{{m}}}{{{d}}}", rf"\frac{{{n * k}}}{{{d * k}}}", rf"{sign}\dfrac{{{m * k}}}{{{d * k}}}"]
    if d == 1:
        ways += [f"{n}", f"{n:,}", f"{n}.0", f"{n:,}".replace(",", "{,}"), rf"{n}\%", f"{n} dollars", rf"{n}\text{{ cm}}"]
    elif m > d:
        ways.append(rf"{sign}{m // d}\frac{{{m % d}}}{{{d}}}")
    scaled = value * 10**6
    if scaled.denominator == 1:
        digits = f"{abs(scaled.numerator):07d}"
        ways.append(f"{sign}{digits[:-6]}.{digits[-6:]}")
    form = draw(st.sampled_from(ways))
    return draw(st.sampled_from([form, f"${form}$", rf"\({form}\)", f"x = {form}", f" {form} ", f"{form}."]))


@settings(max_examples=300, deadline=None)
@given(st.data(), fractions, fractions)
def test_two_writings_have_one_code_iff_they_are_one_number(data, a, b):
    first, second = data.draw(writings(a)), data.draw(writings(b))
    assert canonical(first) == str(a)
    assert (canonical(first) == canonical(second)) == (a == b)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60), st.text(alphabet=r"\{}^_$()[]0123456789+-*/!.,xysqrtfacpi ", max_size=40))
def test_nothing_raises_or_hangs(free, mathlike):
    for text in (free, mathlike, rf"\boxed{{{mathlike}}}"):
        began = time.monotonic()
        answer_code(text)
        chosen(text)
        extract_code(text)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9}}",
        "9^9^9",
        "99999999!",
        "((9!)!)!",
        r"\binom{10^9}{5}",
        "(x+1)^{99999}",
        r"(a+b+c+d)^{20}(a-b)^{20}",
        r"\sum_{i=1}^{10^9} i",
        "10^{999999999}",
    ],
)
def test_answers_that_explode_are_compared_as_text(bomb):
    began = time.monotonic()
    assert canonical(bomb) == canonical(f" {bomb} ") is not None
    assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{1}, in the end \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"unfinished \boxed{12", "12"),
        ("so 3+4=7\n#### 7", "7"),
        ("Therefore the answer is 42.", "42"),
        ("**Answer:** 1,234", "1,234"),
        ("She has 5 apples and 7 pears, 12 in all.", "12"),
        ("no idea", None),
        ("", None),
        (r"\boxed{}", None),
    ],
)
def test_extraction(text, answer):
    assert extract_answer(text) == answer


def test_nested_braces_and_escapes_in_boxes():
    assert last_boxed(r"\boxed{\{1, \text{a}\}}") == r"\{1, \text{a}\}"
    assert last_boxed(r"\boxed {7}") == "7"
    assert last_boxed("boxed{7}") is None


def test_math_reward_reads_messages_too():
    reply = [{"role": "assistant", "content": r"\boxed{0.5}"}]
    assert math_reward([reply, "#### 1/3"], answer=["1/2", "0.33"]) == [1.0, 0.0]
    assert answer_code(r"\boxed{0.5}") == str(Fraction(1, 2))
    assert math_reward(["no answer", ""], answer=["", " "]) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(C)}}", "C"),
        (r"\boxed{AB}", None),
        (r"\boxed{E}", None),
        ("A first idea was wrong. The correct answer is (D).", "D"),
        ("**Answer: B**", "B"),
        ("The answer: C\nbecause A is wrong", "C"),
        ("the answer is A. No, the answer is B.", "B"),
        ("I think so.\n(A)", "A"),
        ("A", "A"),
        ("Apples", None),
        ("The answer is Apples", None),
        ("I don't know", None),
        ("", None),
    ],
)
def test_choices(text, letter):
    assert chosen(text) == letter
    assert choice_reward([text], answer=["A"]) == [float(letter == "A")]


def test_code_is_the_last_python_block():
    assert extract_code("```\na = 1\n```\n```python\nb = 2\n```\n```text\nout\n```") == "b = 2\n"
    assert extract_code("```python\nunfinished = 1") == "unfinished = 1"
    assert extract_code("x = 1") == "x = 1"
    prompt = "import math\n\ndef f(x):\n    '''doc'''\n"
    assert extract_code("```python\ndef f(x): return math.pi\n```", prompt, "f") == "import math\ndef f(x): return math.pi\n"
    assert extract_code("    return 2\n", prompt, "f") == prompt + "    return 2\n"


class Recorder:
    def check_all(self, jobs):
        self.jobs = list(jobs)
        return [Verdict(i % 2 == 0, "", 1, 0.0) for i, _ in enumerate(self.jobs)]


def test_code_reward_hands_programs_and_tests_to_its_runner_in_order():
    runner = Recorder()
    stdin = pack_tests(ProgramTests((("1", "1"), ("2", "2"), ("3", "3"))))
    function = pack_tests(FunctionTests("assert f() == 1", ("f",), "import math"))
    assert CodeReward(runner, max_tests=2)(["```python\nprint(input())\n```", "def f(): return 1"], answer=[stdin, function]) == [1.0, 0.0]
    assert runner.jobs[0].tests == ProgramTests((("1", "1"), ("2", "2")))
    assert runner.jobs[1] == job_of("def f(): return 1", function)
    with pytest.raises(ValueError, match="max_tests: got 0"):
        CodeReward(runner, max_tests=0)
