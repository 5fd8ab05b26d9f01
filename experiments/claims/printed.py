"""Numbers as printed in the papers, with their place.  Strings keep every printed digit."""

from __future__ import annotations

# --- C-GRPO

#: Table 1 and Table 3, k_train and savings in percent; Table 1 first.
SAVINGS = {
    "GSM8K": ("10.4", 68), "MATH-500": ("15.9", 50), "MATH-Algebra": ("12.2", 62), "GPQA-Diamond": ("9.7", 70), "HumanEval": ("16.3", 49),
    "MBPP": ("10.0", 69), "GSM8K, Llama": ("5.7", 82), "GSM8K, Gemma": ("14.2", 56), "MBPP, Llama": ("8.5", 73), "MBPP, Gemma": ("12.5",
    61),
    "MATH-500, Llama": ("12.0", 62), "MATH-500, Gemma": ("18.5", 42),
}  # fmt: skip
#: Table 2: pass@1 on GSM8K, HumanEval, MBPP, MATH-500; Delta on GSM8K; k_train; GPU-hours.
BASELINES = {
    "GRPO": ("54.8", "33.3", "56.0", "48.5", None, "32.0", "11.7"), "GDRO": ("56.8", "34.5", "58.2", "51.0", "2.0", "32.0", "11.7"),
    "AERO": ("56.1", "34.0", "57.5", "50.2", "1.3", "16.6", "6.1"), "GRESO": ("54.7", "33.1", "55.8", "48.3", "-0.1", "15.6", "5.7"),
    "Reinforce-Ada": ("55.4", "33.8", "56.5", "49.5", "0.6", "14.8", "5.4"), "Reinforce-Est": ("55.1", "33.5", "56.1", "49.0", "0.3",
    "15.2", "5.6"),
    "C-GRPO": ("57.2", "36.5", "60.5", "52.5", "2.4", "10.4", "3.8"),
}  # fmt: skip
#: Section 5.3: the range of margins over the strongest baselines.  Section 5.5: speed-up over G = 32.
MARGINS, SPEED_UP = ("0.4", "2.4"), "3.07"
#: Section 5.5, Appendix B: events, prompts, responses and completions of calibration; hours for 12, 6, 3, 1 events; share of the total.
CALIBRATION = (6, 200, 32, 38_400)
CALIBRATION_HOURS = {12: "0.50", 6: "0.25", 3: "0.13", 1: "0.04"}
CALIBRATION_SHARE = "6.6"
#: Section 5.5: (C-GRPO, matched static G, gap) on GSM8K and MATH-500.  Section 5.1: standard errors at n_test = 400, 200.
MATCHED = (("57.2", "53.1", "4.1"), ("52.5", "47.9", "4.6"))
STANDARD_ERRORS = {400: "2.5", 200: "3.5"}
#: Appendices A, B: n to 1/tolerance; delta/M at delta = .12.
TOLERANCES, DELTA_OVER_M = {200: 201, 100: 101}, "0.024"
#: Training: steps, prompts per step (Appendix, training configuration).
STEPS, BATCH = 300, 4
#: Table 6: d_TV, lower bound, empirical coverage, margin.
SHIFT = {
    "GSM8K": ("0.00", "87.5", "87.9", "0.4"),
    "MATH-Algebra": ("0.06", "81.5", "83.6", "2.1"),
    "MATH-500": ("0.15", "72.5", "76.8", "4.3"),
    "GPQA-Diamond": ("0.29", "58.5", "70.4", "11.9"),
}
#: Table 3: delta^(0) of Qwen on GSM8K; Appendix A: share solved within 32 at step 0.
DELTA_GSM8K, SOLVED_GSM8K = "0.12", "0.40"
#: Table 3, MBPP: delta^(0) and p@32 in percent at step 300.
MBPP = {"Qwen2.5-7B": ("0.10", "83.5"), "Llama-3.1-8B": ("0.08", "87.0"), "Gemma-3-4B": ("0.15", "71.0")}
#: Table 1: k_train of MBPP; its p@1, p@8, p@16, p@32; p@1, p@8, p@16 of HumanEval.
MBPP_MEAN_K, MBPP_PASS = "10.0", {1: "60.5", 8: "78.5", 16: "83.0", 32: "83.5"}
HUMANEVAL_PASS = {1: "36.5", 8: "78.2", 16: "95.5"}
#: Appendix, reproducibility: prompts needed for calibration, test and training; problems in the public benchmarks.
PROMPTS_NEEDED = 200 + 200 + 2000
PUBLIC_SIZES = {"HumanEval": 164, "GPQA-Diamond": 198, "MATH-500": 500, "MBPP": 974}
#: Section 5.6: worst under-coverage (points) over 5 budgets x 6 checkpoints.
WORST_GAP, CHECKPOINTS, BUDGETS = "0.2", 6, 5
#: Section 5.5: k_train falls from, to over 1,000 steps.
FALLING_K = ("18.2", "4.2")

# --- CARM

#: Table 1, mean@16: AIME 2024, 2025, 2026, BeyondAIME, Average.
MATH = {
    ("4B", "Null"): ("49.38", "48.33", "54.79", "22.25", "43.69"), ("4B", "IcePop"): ("47.08", "40.83", "40.42", "19.31", "36.91"),
    ("4B", "TRM"): ("66.67", "55.21", "65.00", "32.31", "54.80"), ("4B", "GeoMean"): ("72.50", "64.38", "70.62", "38.88", "61.59"),
    ("4B", "CARM"): ("77.08", "64.38", "69.79", "42.56", "63.45"), ("9B", "Null"): ("76.67", "66.88", "67.71", "45.25", "64.13"),
    ("9B", "IcePop"): ("70.42", "59.58", "66.67", "34.94", "57.90"), ("9B", "TRM"): ("78.33", "67.08", "76.46", "45.81", "66.92"),
    ("9B", "GeoMean"): ("80.42", "66.67", "75.00", "47.06", "67.29"), ("9B", "CARM"): ("82.08", "71.04", "79.38", "49.19", "70.42"),
}  # fmt: skip
#: Table 2, pass@1: TACO, LiveCodeBench-v6, HumanEval+, MBPP+, Average.
CODE = {
    "Null": ("34.50", "38.46", "85.57", "75.22", "58.44"), "IcePop": ("45.87", "43.36", "92.68", "79.81", "65.43"),
    "TRM": ("36.60", "44.97", "87.80", "76.72", "61.52"), "GeoMean": ("46.03", "44.50", "92.28", "78.31", "65.28"),
    "CARM": ("46.70", "51.20", "94.11", "81.22", "68.31"),
}  # fmt: skip
#: Sections 4.2, 5.1: gains of CARM in the three-year AIME mean: (size, rival, points).
AIME_GAINS = (("4B", "TRM", "8.13"), ("9B", "TRM", "3.54"), ("4B", "Null", "19.58"), ("9B", "Null", "7.08"), ("9B", "GeoMean", "3.47"))
#: Section 5.1: gains of GeoMean over Null.
GEOMEAN_GAINS = (("4B", "18.33"), ("9B", "3.61"))
#: Section 4.2 and the abstract: gains of CARM in the four-dataset average.
AVERAGE_GAINS = (("4B", "IcePop", "26.54"), ("9B", "IcePop", "12.52"), ("9B", "GeoMean", "3.13"))
#: Section 4.3: gains in the code average.
CODE_GAINS = (("GeoMean", "3.03"), ("IcePop", "2.88"))
#: Section 5.3: (metric, rival, points) of CARM at k = 16 (mean: k = 1).
SAMPLING_GAINS = (
    ("mean", "GeoMean", "3.47"),
    ("best", "GeoMean", "2.74"),
    ("worst", "GeoMean", "2.78"),
    ("mean", "TRM", "3.54"),
    ("best", "TRM", "0.30"),
    ("worst", "TRM", "4.61"),
)
#: Section 5.2: "standard" masking in the ablation, AIME and LiveCodeBench-v6.
ABLATION = ("75.63", "50.58")
#: Table 4, Qwen3.5-9B: tau to three-year AIME.
SWEEP = {
    "GeoMean": {"1.0025": "71.67", "1.005": "74.03", "1.01": "69.65", "1.02": "71.67", "1.03": "69.86"},
    "CARM": {"1.02": "72.99", "1.025": "77.50", "1.03": "73.82", "1.04": "74.17"},
}
#: Table 5 (Qwen3.5-9B), k = 1, 2, 4, 8, 16.
BEST = {
    "Null": ("70.42", "78.07", "83.34", "86.42", "88.26"),
    "TRM": ("73.96", "81.47", "86.43", "89.39", "90.98"),
    "GeoMean": ("74.03", "80.19", "84.05", "86.73", "88.54"),
    "CARM": ("77.50", "83.94", "87.74", "90.05", "91.28"),
}
WORST = {
    "Null": ("70.42", "62.70", "55.30", "49.04", "44.38"),
    "TRM": ("73.96", "66.49", "59.27", "52.99", "48.00"),
    "GeoMean": ("74.03", "67.66", "61.32", "55.02", "49.83"),
    "CARM": ("77.50", "71.04", "64.44", "58.05", "52.61"),
}
#: Section 3.3, the disagreement case: d_GeoMean, d_CARM; printed ratio, cancelled share, both scores.
CASE = ("0.002502", "0.024486")
CASE_TEXT = ("9.79", "89.78", "1.0025", "1.0248")
CASE_TOKENS = (1024, (160, 668, 195, 1))
#: Section 3.4: largest share of out-of-band tokens at tau = 1.02, 1.04, in percent.
SHARES = {"1.02": "8.88", "1.04": "17.58"}
