"""From measurements to what is printed: medians with their spread, ratios against the yardsticks, targets."""

from statistics import median

TITLES = {
    "w1": ("W1 first copy, {rows} rows", {"copy": "COPY to nothing", "script": "baseline script"}),
    "w2": ("W2 backlog of {backlog} small transactions", {"recv": "pg_recvlogical", "script": "baseline script"}),
    "w3": ("W3 one transaction of {burst} inserts", {"recv": "pg_recvlogical", "script": "baseline script"}),
    "w4": ("W4 steady {rate} transactions/s, {seconds} s", {"script": "baseline script"}),
}
OURS = {"archive": "rindle: archived", "mirror": "rindle: mirror", "rindle": "rindle"}

# A yardstick that is slower than it is known to be proves nothing. The script's rates as parts of those of Postgres'
# own tools, measured on a quiet machine of two cores before the product existed; a tenth less is still believed.
BELIEVED = 0.9
SCRIPT_REACHES = [("w1", "copy", 0.26), ("w2", "recv", 0.29), ("w3", "recv", 0.98)]

AT_LEAST, AT_MOST = "≥", "≤"
# What is judged: text, workload, (column, key) over (column, key) of the same run or None, relation, bound.
TARGETS = [
    ("W1 archive-durable, wall / COPY's wall", "w1", ("archive", "wall_s"), ("copy", "wall_s"), AT_MOST, 1.5),
    ("W1 mirror filled, rows/s / script's", "w1", ("mirror", "per_s"), ("script", "per_s"), AT_LEAST, 1.5),
    ("W2 archive-durable, changes/s / recvlogical's", "w2", ("archive", "per_s"), ("recv", "per_s"), AT_LEAST, 1.0),
    ("W2 gateway's CPU / walsender", "w2", ("archive", "gateway_cpu_s"), ("archive", "walsender_cpu_s"), AT_MOST, 1.3),
    ("W2 mirror level, changes/s / script's", "w2", ("mirror", "per_s"), ("script", "per_s"), AT_LEAST, 2.0),
    ("W3 mirror level, rows/s / script's", "w3", ("mirror", "per_s"), ("script", "per_s"), AT_LEAST, 1.0),
    ("W3 gateway, peak MB", "w3", ("mirror", "gateway_rss_mb"), None, AT_MOST, 200),
    ("W3 follower, peak MB", "w3", ("mirror", "follower_rss_mb"), None, AT_MOST, 200),
    ("W4 p50 / script's", "w4", ("rindle", "p50_ms"), ("script", "p50_ms"), AT_MOST, 2.0),
    ("W4 p99 / script's", "w4", ("rindle", "p99_ms"), ("script", "p99_ms"), AT_MOST, 2.0),
    ("W4 CPU of gateway and follower / script's", "w4", ("rindle", "cpu_per_s"), ("script", "cpu_per_s"), AT_MOST, 3.0),
]


def spread(values):
    return {"median": median(values), "min": min(values), "max": max(values), "runs": len(values)}


def summary(measured):
    """Workload -> column -> key -> median and spread."""
    return {
        workload: {
            column: {key: spread([run[key] for run in runs]) for key in runs[0] if key != "run"}
            for column, runs in columns.items()
        }
        for workload, columns in measured.items()
    }


def ratio(measured, workload, over, under=None):
    """Spread of a figure, or of its ratio to another one of the same run; None when it was not measured."""
    columns = measured.get(workload, {})
    tops = {run["run"]: run[over[1]] for run in columns.get(over[0], [])}
    if under:
        bottoms = {run["run"]: run[under[1]] for run in columns.get(under[0], [])}
        tops = {run: top / bottoms[run] for run, top in tops.items() if bottoms.get(run)}
    return spread(list(tops.values())) if tops else None


def targets(measured):
    judged = []
    for text, workload, over, under, relation, bound in TARGETS:
        found = ratio(measured, workload, over, under)
        if found:
            met = found["median"] >= bound if relation == AT_LEAST else found["median"] <= bound
            judged.append({"target": text, **found, "relation": relation, "bound": bound, "met": met})
    return judged


def belief(measured):
    """Whether the script is as fast as it is known to be."""
    checks = []
    for workload, limit, known in SCRIPT_REACHES:
        found = ratio(measured, workload, ("script", "per_s"), (limit, "per_s"))
        if found:
            text = f"{workload.upper()} baseline script / {'COPY' if limit == 'copy' else 'pg_recvlogical'}"
            needed = round(BELIEVED * known, 3)
            checks.append({"check": text, **found, "known": known, "needed": needed, "met": found["median"] >= needed})
    return checks


def document(bench, machine, sizes):
    checks = belief(bench.measured)
    return {
        "format": 1,
        "machine": machine,
        "sizes": sizes,
        "measured": bench.measured,
        "summary": summary(bench.measured),
        "targets": targets(bench.measured),
        "yardstick": {"void": not all(check["met"] for check in checks), "checks": checks},
        "problems": bench.problems,
    }


def text(document):
    lines = []
    machine = document["machine"]
    lines.append(", ".join(f"{key} {value}" for key, value in machine.items()))
    for workload, columns in document["summary"].items():
        title, names = TITLES[workload]
        lines += ["", title.format(**document["sizes"]), *_table(columns, {**names, **OURS})]
    if document["targets"]:
        lines += ["", "Targets (medians of the ratios within each run)"]
        for judged in document["targets"]:
            goal = f"{judged['relation']} {judged['bound']:g}"
            lines.append(_judged(judged["target"], judged, goal, "met" if judged["met"] else "MISSED"))
    lines += ["", "Is the baseline script as fast as it is known to be?"]
    for check in document["yardstick"]["checks"]:
        goal = f"≥ {check['needed']:g}"
        lines.append(_judged(check["check"], check, goal, "yes" if check["met"] else "NO"))
    if document["yardstick"]["void"]:
        lines.append("comparison void: the script was slower than it is known to be; ratios against it prove nothing")
    for problem in document["problems"]:
        lines.append(f"WRONG  {problem}")
    return "\n".join(lines)


def _judged(text, figures, goal, word):
    return f"  {text:<50} {_cell(figures):>22}  {goal:>7}  {word}"


def _table(columns, names):
    shown = [column for column in names if column in columns]
    keys = list(dict.fromkeys(key for column in shown for key in columns[column]))
    rows = [["", *(names[column] for column in shown)]]
    for key in keys:
        rows.append([_words(key), *(_cell(columns[column][key]) if key in columns[column] else "" for column in shown)])
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:]))]
        lines.append("  " + "  ".join(cells))
    return lines


def _words(key):
    if key == "per_s":
        return "rows or changes/s"
    for end, unit in (("_per_s", "/s"), ("_s", ", s"), ("_ms", ", ms"), ("_mb", ", MB")):
        if key.endswith(end):
            key = key.removesuffix(end) + unit
            break
    return key.replace("_", " ").replace("cpu", "CPU").replace("rss", "peak memory")


def _cell(figures):
    middle, low, high = (_short(figures[key]) for key in ("median", "min", "max"))
    return f"{middle} ({low}..{high})"


def _short(value):
    if abs(value) >= 10_000:
        return f"{value / 1000:.1f}k"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}"
