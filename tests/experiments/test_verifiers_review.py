"""Verifiers under hostile and unusual answers: they end, raise nothing, scan in linear time, and give only whole readings a value."""

import os
import re
import signal
import threading
import time
from contextlib import contextmanager
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.verifiers import answer_code, canonical, chosen, math_reward, math_verify_reward, symbolic
from experiments.verifiers.text import last_boxed
from experiments.verifiers.worker import Worker


@contextmanager
def alarm(seconds):
    def late(*_):
        raise TimeoutError(f"not done within {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


ENDLESS = [
    r"9^{9999} \pmod{7}",
    "(9^{9999})^{9999}",
    "((9^{999})^{999})^{999}",
    "2^{9999*9999*9999}",
    r"2^{9999\cdot 9999\cdot 9999}",
    "2^(9999*9999*9999)",
    r"2^{9999(9999)}",
    r"\sqrt{9^{9999}+1}",
    "(9^{9999}+1)^{1/2}",
    r"\sqrt[9999]{9^{9999}+1}",
    r"\exp(\exp(100))",
    r"\exp(\exp(\exp(10)))",
    r"\exp(10^{9999})",
    r"\exp{99999999999}",
    r"e^{10^{10}}",
    r"e^{e^{e^{e^e}}}",
    r"\sinh(9999999)",
    r"\cosh(10^{10})",
    r"\sin(10^{9999}\pi)",
    r"\log(\log(9^{9999}))",
    "(x+y+z+w)^{20}",
    r"\frac{(x+y+z+w)^{10}}{(x-y+z-w)^{10}}",
    "(x+y)^{12}(z+w)^{12}",
    "x^{9999}-y^{9999}",
    "x^{99!}+y",
    r"\sin(\exp((9999-i)(e)))",
    r"\ln(u+x)+\exp(9999)",
    "(x^{100}-1)/(x^{99}-1)",
    r"(1+\sqrt{2})^{9999}-(1-\sqrt{2})^{9999}",
    r"\frac{1}{\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}}",
    r"\sqrt{" + str((10**61 + 69) * (10**63 + 57)) + "}",
    r"\binom{999}{500}^{9999}",
    r"\binom{10^9}{5}",
    "(1000!)^{9999}",
    "9**9**9",
    *[opened * n + "1" + closed * n for n in (15, 60, 300) for opened, closed in ("()", "[]", "{}", "||", (r"\{", r"\}"))],
    *[r"\left(" * n + "x+1" + r"\right)" * n for n in (15, 60)],
    *[r"\frac{x+1}{" * n + "x" + "}" * n for n in (8, 40)],
    *[r"\sqrt{" * n + "x" + "}" * n for n in (25, 100)],
    "-" * 900 + "1",
    "+-" * 400 + "1",
    "+".join(rf"\sqrt{{{k}}}" for k in range(2, 60)),
    r"\frac{1}{" + "+".join(rf"\sqrt{{{k}}}" for k in (2, 3, 5, 7, 11, 13, 17, 19)) + "}",
]  # fmt: skip


@pytest.mark.parametrize("answer", ENDLESS)
def test_every_answer_ends(answer):
    with alarm(20):
        assert canonical(answer) == canonical(f" {answer} ") is not None
        assert math_reward([rf"\boxed{{{answer}}}"], answer=["123456"]) == [0.0]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.recursive(
        st.sampled_from(["2", "9", "99", "x", "1.5", r"\pi", "i"]),
        lambda inner: st.one_of(
            st.builds("({})^{{{}}}".format, inner, inner),
            st.builds("({})!".format, inner),
            st.builds(r"\exp({})".format, inner),
            st.builds(r"\sqrt{{{}}}".format, inner),
            st.builds(r"\frac{{{}}}{{{}}}".format, inner, inner),
            st.builds("({}+{})".format, inner, inner),
            st.builds(r"{}\cdot {}".format, inner, inner),
        ),
        max_leaves=12,
    )
)
def test_towers_of_everything_end(answer):
    with alarm(20):
        assert canonical(answer) is not None


def test_a_process_that_stops_or_ends_is_replaced():
    worker = Worker(cpu_seconds=0.5)
    with alarm(120):
        assert worker.code("x+x") == symbolic.code("2x")
        pid = worker._process.pid
        os.kill(pid, signal.SIGSTOP)
        worker.wall_seconds = 0.5
        assert worker.code("x+y") is None, "a process that does not answer is ended by the clock"
        worker.wall_seconds = 60
        assert worker.code("x+x") == symbolic.code("2x") and worker._process.pid != pid
        os.kill(worker._process.pid, signal.SIGKILL)
        assert worker.code("y+y") == symbolic.code("2y"), "a process that ended in between is replaced"
        worker.close()
    assert worker.starts == 3


def test_the_kernel_ends_the_process_when_processor_time_is_used_up(monkeypatch):
    from experiments.verifiers import worker as module

    source = (
        "import sys, experiments.verifiers.symbolic as s\n"
        "plain = s.code\n"
        "def code(text):\n"
        "    if text == 'long': return str(len(str(pow(7, 1 << 40))))\n"
        "    if text == 'large': return str(len(bytearray(1 << 40)))\n"
        "    if text == 'dies': import os; os._exit(3)\n"
        "    if text == 'talks': print('noise'); return 'quiet'\n"
        "    return plain(text)\n"
        "s.code = code\n"
    )
    monkeypatch.setattr(module, "_SERVE", source + module._SERVE)
    worker = Worker(cpu_seconds=0.5)
    with alarm(120):
        began = time.monotonic()
        assert worker.code("long") is None
        assert worker.code("1+1") == "2"
        assert worker.code("large") is None
        assert worker.code("1+2") == "3"
        assert worker.starts == 2, "too little memory is an answer, too much processor time an end"
        assert worker.code("dies") is None
        assert worker.code("talks") == "quiet"
        assert worker.starts == 4, "a crash is tried once more"
        assert time.monotonic() - began < 60
        worker.close()


def test_threads_and_forked_children_get_their_own_answers():
    worker = Worker()
    numbers = list(range(40))
    found = {}

    def ask(n):
        found[n] = worker.code(f"{n}+0.5")

    with alarm(120):
        threads = [threading.Thread(target=ask, args=(n,)) for n in numbers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == {n: f"{2 * n + 1}/2" for n in numbers} and worker.starts == 1
        child = os.fork()
        if child == 0:
            right = all(worker.code(f"{n}+1/3") == f"{3 * n + 1}/3" for n in numbers)
            worker.close()
            os._exit(0 if right else 1)
        assert all(worker.code(f"{n}+0.25") == f"{4 * n + 1}/4" for n in numbers)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        worker.close()


def test_an_interrupted_question_leaves_no_reply_behind():
    worker = Worker()
    with alarm(60):
        worker.code("1+1")

        class Interrupt(Exception):
            pass

        def interrupt(*_):
            raise Interrupt

        before = signal.signal(signal.SIGUSR1, interrupt)
        original = worker._line

        def interrupted(seconds):
            os.kill(os.getpid(), signal.SIGUSR1)
            return original(seconds)

        worker._line = interrupted
        with pytest.raises(Interrupt):
            worker.code("2+2")
        worker._line = original
        signal.signal(signal.SIGUSR1, before)
        assert worker.code("3+3") == "6"
        worker.close()


# Reading responses in linear time.

HOSTILE = {
    "boxes": lambda n: r"\boxed{" * (n // 7),
    "boxes without braces": lambda n: r"\boxed" * (n // 6),
    "boxes and spaces": lambda n: r"\boxed " * (n // 14) + " " * (n // 2),
    "closed boxes": lambda n: r"\boxed{" * (n // 8) + "}" * (n // 8),
    "one long box": lambda n: r"\boxed{1" + " " * n + "x}",
    "box of braces": lambda n: r"\boxed{" + "{" * (n // 2) + "}" * (n // 2) + "}",
    "backslashes": lambda n: "\\" * n,
    "backslashes, boxed": lambda n: "\\" * n + "boxed{1}",
    "spaces": lambda n: "1" + " " * n + "x",
    "answer and spaces": lambda n: "answer is " + " " * n + "x",
    "answer and lines": lambda n: "the answer is" + "\n" * n,
    "answers": lambda n: "answer " * (n // 7),
    "answers are": lambda n: "answer is " * (n // 10),
    "hashes": lambda n: "#" * n,
    "hashes and spaces": lambda n: "#### " * (n // 5),
    "final": lambda n: "final " * (n // 6) + " " * n,
    "dollars": lambda n: "$" * n,
    "answer, dollars": lambda n: "answer: " + "$1" * (n // 2),
    "digits": lambda n: "7" * n,
    "thousands": lambda n: "1," * (n // 2),
    "numbers": lambda n: "1 " * (n // 2),
    "slashes": lambda n: "1 / " * (n // 4),
    "braces": lambda n: "{" * n,
    "stars": lambda n: "*" * n,
    "letters": lambda n: "A " * (n // 2),
    "choices": lambda n: "answer is A " * (n // 12),
    "stars and choice": lambda n: "answer: " + "*" * n + "A",
    "parentheses": lambda n: "answer is (" * (n // 11),
    "text": lambda n: r"5\text{ a" * (n // 9),
    "points": lambda n: "1." * (n // 2),
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_reading_a_response_is_linear(shape):
    """200,000 characters within seconds: a quadratic scan would need minutes."""
    text = HOSTILE[shape](200_000)
    with alarm(20):
        for read in (last_boxed, answer_code, canonical, chosen):
            read(text)
        answer_code(rf"\boxed{{{text}}}")


@pytest.mark.parametrize("shape", HOSTILE)
def test_four_times_the_text_is_about_four_times_the_work(shape):
    def seconds(n):
        text = HOSTILE[shape](n)
        best = float("inf")
        for _ in range(3):
            began = time.process_time()
            answer_code(text)
            chosen(text)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(160_000) < 8 * seconds(40_000) + 0.2


# Nothing raises.

DIGITS = "7" * 5000


@pytest.mark.parametrize(
    "answer",
    [
        DIGITS,
        f"-{DIGITS}",
        f"0.{DIGITS}",
        f"{DIGITS}.5",
        rf"\frac{{{DIGITS}}}{{3}}",
        rf"\frac{{3}}{{{DIGITS}}}",
        f"{DIGITS}/3",
        rf"0.\overline{{{DIGITS}}}",
        f"1 {DIGITS}/3",
        f"{DIGITS}e3",
        rf"2^{{{DIGITS}}}",
        rf"\sqrt{{{DIGITS}}}",
        *(DIGITS[:n] for n in (299, 300, 301, 999, 1000, 1001, 4299, 4300, 4301)),
        *(f"x+{DIGITS[:n]}" for n in (900, 998)),
        "1e999",
        "1e-999",
        "\x00",
        "\ud800",
        "٣",
        "½",
        "²",
    ],
)
def test_answers_of_any_length_are_answers(answer):
    assert math_reward([rf"\boxed{{{answer}}}"], answer=["1"]) == [0.0]
    assert math_reward([rf"\boxed{{{answer}}}"], answer=[answer]) == [1.0]


def test_what_is_no_text():
    assert math_reward([None], answer=["1"]) == [0.0]
    assert math_reward([[{"role": "assistant", "content": None}]], answer=["1"]) == [0.0]
    assert math_reward([[{"role": "assistant", "tool_calls": []}]], answer=["1"]) == [0.0]
    for gold in (1, None, 0.5):
        with pytest.raises(ValueError, match=r"answer: got .*; need a string; because"):
            math_reward(["#### 1"], answer=[gold])
        with pytest.raises(ValueError, match=r"answer: got .*; need a string; because"):
            canonical(gold)


# Only a whole reading has a value.

#: Response and gold answer that are not one answer.
APART = [
    ("2**10", "2"),
    ("x=2**10", "2"),
    ("9**9**9", "9"),
    ("10³", "10"),
    ("2²", "2"),
    ("3·4", "3"),
    ("1×10³", "1"),
    ("1 000", "0"),
    ("10 000", "1 000"),
    ("1 2", "3"),
    ("1 2", "2"),
    ("1 2", "12"),
    (r"5\,6", "56"),
    (r"5 \quad 6", "11"),
    (r"5 \quad 6", "30"),
    ("1,2,", "6/5"),
    ("1//2", "1"),
    ("0x10", "0"),
    ("5→6", "5"),
    ("5<", "5"),
    ("5&6", "5"),
    (r"\le 5", "5"),
    (r"\neg 5", "5"),
    (r"\ge 5", r"\le 5"),
    (r"\{x \mid x > 3\}", "3"),
    (r"\{x \mid x > 3\}", r"\{x \mid x < 3\}"),
    (r"\{x \mid x > 3\}", r"\{x \mid x \ge 3\}"),
    ("101_2", "101_5"),
    ("101_2", "101"),
    ("1_2", "1_3"),
    ("10{:}30", "10{:}45"),
    (r"5\text{ and 6}", "5"),
    (r"5\text{, }6", "5"),
    (r"5\text{ not}", "5"),
    (r"5\text{ is wrong}", "5"),
    (r"5\text{ or more}", "5"),
    (r"3\text{ minus }", "3"),
    (r"5\text{ million}", "5"),
    ("5 million", "5"),
    ("5 or more", "5"),
    ("2(3)", "5"),
    ("2(3)", "2"),
    (r"2\left(\frac{1}{2}\right)", "5/2"),
    ("4(5)", "9"),
    (r"5 \approx 6", "5"),
    (r"5 \pmod{7}", "5"),
    (r"5 \bmod 3", "5"),
    ("5'", "5"),
    ("5!!", "5!"),
    ("5!", "5"),
    (r"\lfloor 5.5\rfloor", "5.5"),
    ("-1^2", "1"),
    ("--1", "-1"),
    ("5--6", "-1"),
    ("1:2", "1"),
    ("3:4", "3"),
    ("x^{10}", "x^1"),
    (r"\sin x\cos x", r"\sin(x\cos x)"),
    (r"\sin 30^\circ", r"\sin 30"),
    ("(1,2)", "[1,2]"),
    ("(1,2]", "[1,2)"),
    (r"\{(1,2)\}", "(1,2)"),
    (r"\{\{1\}\}", r"\{1\}"),
    (r"\{100,200\}", r"\{100200\}"),
    ("(100,200]", "100200"),
    ("1,00", "100"),
    ("100,20", "10020"),
    ("1.2.3", "1.2"),
    ("{1}{2}", "2"),
    (r"\sqrt{2}3", r"3\sqrt{2}"),
    ("AB", "BA"),
    ("no", "on"),
    (r"10^{-21}\pi", "0"),
    (r"10^{-21}\pi", r"10^{-22}\pi"),
    (r"10^{-25}\sqrt{2}", r"10^{-26}\sqrt{3}"),
    (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
    ("5 feet 6 inches", "56"),
    ("12 feet 5 inches", "12"),
    ("1 hour 30 minutes", "130"),
    ("5 apples and 6 oranges", "5"),
    ("5 pm", "5"),
    ("3rd", "3"),
    ("5 a", "5"),
    ("5 xy", "5"),
    ("2 abc", "2"),
    ("2 sin theta", "2"),
    ("2 log a", "2"),
    (r"5\mathrm{x}", "5"),
    (r"A_\text{max}", r"A_\text{min}"),
    (r"\text{no}\text{thing}", "no"),
    ("cat", "act"),
    ("3 hours and 20 minutes", "3 hours and 20 seconds"),
    ("5 dollars and 30 cents", "5 dollars and 30"),
    ("52_8", "52_8 cm"),
    ("5 and 6", "5"),
    ("(5", "5"),
    ("5)", "5"),
    ("5+", "5"),
    ("=5", "5"),
]

#: Ways to write one answer.
TOGETHER = [
    [r"1.5 \times 10^{-3}", "0.0015", "1.5e-3", r"\frac{3}{2000}", "1.5·10⁻³", "1.5×10^-3"],
    [r"6.02\times10^{23}", "602" + "0" * 21],
    ["0.3+0.6", "0.9", "9/10"],
    [r"\frac{1.5}{2.5}", "3/5", "0.6"],
    ["1.1^2", "1.21", "1.1**2"],
    [r"\frac{0.1}{0.3}", "1/3", r"0.\overline{3}"],
    [r"0.1\cdot 3", "0.3"],
    [r"\frac{1+2i}{5}", r"\frac15+\frac25 i", r"\frac15+\frac{2i}{5}", "0.2+0.4i"],
    [r"\frac{2i}{3}", r"\frac{2}{3}i", r"\frac23 i"],
    [r"3+2i\sqrt2", r"3+2\sqrt2 i", r"3+2\sqrt{2}i"],
    ["i^2", "-1", "e^{i\\pi}", r"\sqrt[3]{-1}"],
    [r"\frac1{1+i}", r"\frac{1-i}2"],
    [r"3+\sqrt{-1}", "3+i", "i+3"],
    [r"\sqrt[3]{-8}", "(-8)^{1/3}", "-2", "-8^{1/3}"],
    ["3^(1/2)", r"\sqrt{3}", "3**0.5", "sqrt(3)", "√3", "3^{0.5}", r"3^\frac12"],
    ["2^(10)", "1024", "2**10", "2^10", "2¹⁰"],
    ["2sqrt(3)", r"2\sqrt3", "2*sqrt(3)", "2√3", r"\sqrt{3}\cdot2", r"\sqrt{12}"],
    [r"12\pi\text{ square units}", r"12\pi", r"12\pi \text{ cm}^2", "12π", r"12\pi\ \mathrm{cm}^2"],
    ["12", r"12\text{ marbles}", "12 marbles", r"12\,\text{cm}", "12 m/s", r"12 \mathrm{~cm}", "12 sq ft", r"\text{12 cm}", "12."],
    ["½", "1/2", "0.5", "２/４"],
    ["10½", "21/2", r"10\frac{1}{2}"],
    ["1 000", "1000", "1,000", r"1\,000", "1{,}000", "1 000.0"],
    [r"1,000\pi", r"1000\pi", r"10^3\pi"],
    ["5 or 6", "6, 5", r"5\text{ and }6", r"x = 5\text{ or }6", "$5$ and $6$"],
    [r"\pm 2", r"\{-2,2\}", "2, -2", "±2"],
    [r"1\pm\sqrt2", r"1+\sqrt{2}, 1-\sqrt{2}"],
    [r"(-\infty,\infty)", r"\mathbb{R}", r"(-\infty, +\infty)"],
    [r"\left(\begin{array}{cc}1&2\\3&4\end{array}\right)", r"\begin{bmatrix}1 & 2\\ 3 & 4\end{bmatrix}"],
    ["11_2", "11_{2}"],
    ["xyz+1", "1+zyx", r"1+x\cdot y z"],
    [r"\binom{n}{2}", r"\frac{n(n-1)}{2}", "n(n-1)/2"],
    ["12", "12 cats", "12 red balls", r"12\text{ m}", "12 in", r"12\text{ m}^2"],
    ["x^10", "x^{10}"],
    ["1/2x", "x/2"],
    ["2(3)", "6", r"2\cdot 3", "2 * 3"],
    ["|-5|", "5", r"\left|5\right|", r"\lvert 5\rvert"],
    [r"\log_2 8", "3", r"\log 1000", r"\ln e^3"],
    [r"\binom{5}{2}", "10"],
    [r"\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}", "0"],
]


@pytest.mark.parametrize(("response", "gold"), APART)
def test_what_is_not_the_answer_is_not_rewarded(response, gold):
    assert math_reward([rf"\boxed{{{response}}}", rf"\boxed{{{gold}}}"], answer=[gold, response]) == [0.0, 0.0]


@pytest.mark.parametrize("forms", TOGETHER, ids=lambda forms: forms[0])
def test_what_is_the_answer_is_rewarded_in_all_its_writings(forms):
    codes = {form: canonical(form) for form in forms}
    assert len(set(codes.values())) == 1, codes
    pairs = [(a, b) for a in forms for b in forms]
    assert math_reward([rf"\boxed{{{a}}}" for a, _ in pairs], answer=[b for _, b in pairs]) == [1.0] * len(pairs)


READ = r"""
0 1 2 3 7 10 0.5 1.5 x y i e + - * / ^ ! ( ) [ ] { } | , ; = < > _ ** sqrt pi
\frac \sqrt \pi \cdot \times \div \pm \le \ge \ne \cup \cap \infty \{ \} \sin \ln \log_ \mathrm{m}
"""
FOREIGN = r"""
? # & ~ ' : \approx \equiv \pmod \mid \in \text{or} \text{cm} \overline \quad \, // → and not apples \neg \perp \partial ² ½ × √ ≤ °
"""
TOKENS = READ.split() + FOREIGN.split()


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(READ.split()), min_size=1, max_size=8), st.sampled_from(["", " "]))
def test_the_last_token_of_what_is_read_has_an_effect(parts, space):
    """A reading of a prefix would give the text and the text without its last token one value, as only 0 x = 0 and 2! = 2 may."""
    text = space.join(parts)
    code = symbolic.code(text)
    if code is not None and "0" not in text and "!" not in text:
        assert symbolic.code(" ".join(symbolic.tokens(text)[:-1])) != code


@settings(max_examples=600, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from(READ.split()), max_size=6),
    st.sampled_from(FOREIGN.split()),
    st.lists(st.sampled_from(READ.split()), max_size=6),
)
def test_what_has_a_token_without_meaning_is_not_read(before, foreign, after):
    assert symbolic.code(" ".join([*before, foreign, *after])) is None


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=7), st.sampled_from(["", " "]))
def test_random_answers_raise_nothing_and_equal_themselves(parts, space):
    text = space.join(parts)
    with alarm(20):
        code = canonical(text)
        assert code == canonical(f" {text} ")
        assert math_reward([rf"\boxed{{{text}}}"], answer=[text])[0] in (0.0, 1.0)


numbers = st.one_of(st.integers(0, 40).map(str), st.decimals(0, 9, places=2).map(str), st.sampled_from([r"\frac{2}{3}", r"\frac{1.5}{4}"]))


@st.composite
def arithmetic(draw, depth=3):
    """A LaTeX expression and its Python reading over rationals."""
    if depth == 0 or draw(st.booleans()):
        text = draw(numbers)
        if "frac" in text:
            top, bottom = re.findall(r"\{([^}]*)\}", text)
            return text, Fraction(top) / Fraction(bottom)
        return text, Fraction(text)
    (left, a), (right, b) = draw(arithmetic(depth - 1)), draw(arithmetic(depth - 1))
    ways = [(rf"({left})+({right})", a + b), (rf"({left})-({right})", a - b), (rf"({left})({right})", a * b)]
    ways += [(rf"\left({left}\right)\cdot({right})", a * b), (rf"({left})×({right})", a * b), (rf"({left})^2", a**2), (rf"({left})³", a**3)]
    ways += [(rf"({left})**2", a**2), (rf"-({left})", -a)]
    if b:
        ways += [(rf"\frac{{{left}}}{{{right}}}", a / b), (rf"({left})/({right})", a / b), (rf"({left})\div({right})", a / b)]
    return draw(st.sampled_from(ways))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(arithmetic())
def test_arithmetic_is_exact(expression):
    text, value = expression
    assert canonical(text) == str(value)


def math_verifys(form):
    """The value by the parser of math-verify, None where it reads none: it raises plain `Exception`."""
    from latex2sympy2_extended import latex2sympy

    try:
        return complex(latex2sympy(form, is_real=True, normalization_config=None).evalf())
    except Exception:
        return None


def test_where_math_verify_reads_all_it_agrees():
    """On the plain real forms above; mixed numbers, odd roots and powers in parentheses are conventions in which the two differ."""
    plain = re.compile(r"(?:\d|[-+/^{} ]|\\(?:frac|sqrt|pi|cdot|times|log|ln)(?![a-z]))+")
    forms = {f for forms in TOGETHER for f in forms if plain.fullmatch(f) and not re.search(r"\d \d|-8|\\log 1|\{-1\}", f)}
    values = {form: math_verifys(form) for form in sorted(forms)}
    differ = {f: v for f, v in values.items() if v is not None and abs(float(Fraction(canonical(f))) - v) > 1e-9 * max(1, abs(v))}
    assert differ == {} and sum(v is not None for v in values.values()) >= 12


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("The answer is 12 marbles.", "12"),
        ("#### 12 marbles", "12"),
        ("#### $1,234.00", "1234"),
        ("The answer is 5, since 2+3=5.", "5"),
        ("The answer is 5 because 6 > 3.", "5"),
        ("The answer is approximately 3.14", "3.14"),
        ("So 5 answers. The answer is\n5", "5"),
        ("The answer is:\n\n5", "5"),
        ("The answer is 12 (twelve).", "12"),
        ("The answer is $5$ apples, as 2+3=5.", "5"),
        ("The answer is $\\frac{1}{2}$ of the cake.", "1/2"),
        ("The final answer is \\(x = 5\\).", "5"),
        ("**Final Answer: 5**", "5"),
        ("The answer is **5**.", "5"),
        ("Answer: 5\n\nLet me check: 2+3=5 and 7.", "5"),
        ("The answer is x = 5", "5"),
        ("The answer is (1, 2).", "(1,2)"),
        ("The answer to the second question is 7.", "7"),
        ("To answer the question: 5+6=11", "11"),
        ("The answer is Monday.", "monday"),
        ("The answer is $2$ and $3$.", "2, 3"),
        ("The answer is 7. The answer is not 5.", "7"),
        ("The answer is 3 hours and 20 minutes.", "3 hours and 20 minutes"),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "5"),
        ("The answer is $x^2 + 1$ for all $x$.", "1+x^2"),
        ("The answer is $12 per hour.", "12"),
        ("The answer is 3.5. I checked 2.", "7/2"),
        ("####5", "5"),
        ("#### -5", "-5"),
        (r"\boxed 7", "7"),
        (r"\boxed7", "7"),
        (r"\boxed{5}\boxed{", "5"),
        (r"\fbox{7} then \boxed{5}", "5"),
        (r"\boxed{5} then \fbox{7}", "7"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\\boxed{5}", "5"),
        ("$\\boxed{\n5\n}$", "5"),
        (r"\boxed{5 \text{ pounds}}", "5"),
    ],
)
def test_answers_in_sentences(text, gold):
    assert math_reward([text], answer=[gold]) == [1.0]


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The answer is B. Option A is incorrect.", "B"),
        ("Answer: A. But option B is wrong", "A"),
        ("Answer: A\n(choice C ignores gravity)", "A"),
        ("The answer is C, not option D", "C"),
        ("The answer is C. The answer A would be wrong.", "C"),
        ("The answer is not A. The answer is B.", "B"),
        ("The wrong answer is A. The right answer is B.", "B"),
        ("The right answer is B. The wrong answer is A.", "B"),
        ("The answer is A good one", None),
        ("The answer is A or B", None),
        ("The answer is A and B.", None),
        ("Answer: A, B", None),
        ("The answer is I", None),
        ("The answer is A because it fits.", "A"),
        (r"\boxed{B. foo}", "B"),
        (r"\boxed{(B) 5 m}", "B"),
        (r"\boxed{\textrm{B}}", "B"),
        (r"\boxed{\textbf{(B)}}", "B"),
        (r"\boxed{\text{Answer: B}}", "B"),
        (r"\boxed{A or B}", None),
        (r"\boxed{A good one}", None),
        (r"\boxed{b}", "B"),
        ("The answer is $B$", "B"),
        (r"The answer is $\mathbf{B}$.", "B"),
        (r"The answer is \textbf{B}", "B"),
        ("I choose B.", "B"),
        ("I would go with option (C)", "C"),
        ("The correct option is **B**", "B"),
        ("The best choice is B because of this.", "B"),
        ("The correct answer is therefore B", "B"),
        ("Answer: [B]", "B"),
        ("answer:\nB", "B"),
        ("answer: b", "B"),
        ("Option A is wrong.", None),
        ("A. foo\nB. bar\nC. baz\nD. qux", None),
        ("It follows.\nB. foo bar", "B"),
    ],
)
def test_the_choice_is_what_is_stated_not_what_is_mentioned(text, letter):
    assert chosen(text) == letter


@st.composite
def formulas(draw, depth=2):
    """LaTeX in the notation in which math-verify's parser has no conventions of its own: signs between factors, braces, brackets."""
    if depth == 0:
        return draw(st.sampled_from(["2", "3", "7", r"\pi", "x", "y", r"\frac{2}{3}", r"\sqrt{5}", "x^{2}", "e^{x}"]))
    inner = formulas(depth - 1)
    a, b = draw(inner), draw(inner)
    return draw(
        st.sampled_from(
            [
                rf"\frac{{{a}}}{{{b}}}",
                f"{a} + {b}",
                f"({a} - {b})",
                rf"{a} \cdot ({b})",
                rf"\sqrt{{{a}+9}}",
                f"({a})^{{2}}",
                rf"\sin({a})",
                rf"({a}) \cdot \cos({b})",
            ]
        )
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(formulas())
def test_formulas_mean_what_math_verify_reads(text):
    import sympy
    from latex2sympy2_extended import latex2sympy

    at = {sympy.Symbol("x", real=True): sympy.Rational(37, 100), sympy.Symbol("y", real=True): sympy.Rational(-113, 100)}
    theirs = latex2sympy(text, is_real=True, normalization_config=None).subs(at).doit()
    assert not theirs.free_symbols
    if symbolic.code(text) is None:
        assert theirs.evalf(30).has(sympy.zoo, sympy.nan), "only a division by zero is not read"
        return
    ours = symbolic._value(symbolic.tokens(text)).subs(at)
    assert abs(complex(ours.evalf(30)) - complex(theirs.evalf(30))) <= 1e-12 * max(1, abs(complex(ours)))


PARTLY_READ = [("101_2", "101"), ("1 000", "0"), ("2(3)", "5"), (r"\{x \mid x > 3\}", "3")]


def test_math_verify_by_name_is_the_library_and_ends():
    """Its own verdicts, right and wrong ones, within the budget; the default does not share the wrong ones."""
    boxed = [rf"\boxed{{{answer}}}" for answer, _ in PARTLY_READ]
    golds = [gold for _, gold in PARTLY_READ]
    assert math_verify_reward(boxed, answer=golds) == [1.0] * 4
    assert math_reward(boxed, answer=golds) == [0.0] * 4
    responses = ["The answer is $2$.", r"\boxed{0.5}", r"\boxed{9^{9999} \pmod{7}}", None, [{"role": "assistant", "content": r"\boxed{7}"}]]
    assert math_verify_reward(responses, answer=["3", r"\frac{1}{2}", "6", "1", "7"]) == [0.0, 1.0, 0.0, 0.0, 1.0]
    with pytest.raises(ValueError, match=r"^answer: got 7 of type int; need a string; because "):
        math_verify_reward(["7"], answer=[7])
