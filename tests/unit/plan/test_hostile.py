"""Plans that are YAML and mean harm are refused, or accepted, within a second."""

from __future__ import annotations

import time

import pytest

from dsec.errors import PlanError
from dsec.plan.check import check
from dsec.plan.load import load_plan

GO = "stages:\n  go: {uses: 'a.b:c'}\n"


def stages(line: str, many: int) -> str:
    return "stages:\n" + "".join(line.format(i=i, j=i + 1, k=(i + 1) % many, m=i ^ 1) + "\n" for i in range(many))


CASES = {
    "many stages": stages("  s{i}: {{uses: 'a.b:c'}}", 20_000),
    "a chain": stages("  s{i}: {{uses: 'a.b:c', inputs: {{x: s{j}.o}}}}", 3000),
    "a chain that gathers": stages("  s{i}: {{uses: 'a.b:c', inputs: {{x: s{j}.o, y: 's{j}[x=*].o'}}}}", 2000),
    "a long cycle": stages("  s{i}: {{uses: 'a.b:c', needs: s{k}}}", 3000),
    "many cycles": stages("  s{i}: {{uses: 'a.b:c', needs: s{m}}}", 3000),
    "unknown stages": stages("  s{i}: {{uses: 'a.b:c', needs: [" + ",".join(f"t{j}" for j in range(40)) + "]}}", 1000),
    "axes": stages("  s{i}: {{uses: 'a.b:c', inputs: {{x: s{j}.o}}, matrix: {{a{i}: [1]}}}}", 2000),
    "params": "params:\n" + "".join(f"  p{i}: 1\n" for i in range(45_000)) + GO,
    "unknown keys": "".join(f"p{i}: 1\n" for i in range(45_000)) + GO,
    "ranges": "params:\n" + "".join(f"  p{i}: ${{{{ range(9999) }}}}\n" for i in range(1900)) + GO,
    "lengths": "params:\n" + "".join(f"  p{i}: ${{{{ len(range(9999)) }}}}\n" for i in range(1900)) + GO,
    "sums": "params:\n" + "".join(f"  p{i}: ${{{{ max(range(9000)) }}}}\n" for i in range(1900)) + GO,
    "values": "matrix: {a: [" + ",".join(map(str, range(99_000))) + "]}\n" + GO,
    "cells": "matrix: {a: {range: 100000}, b: {range: 100000}, c: {range: 100000}}\n" + GO,
    "excludes": "matrix: {a: {range: 1000}, b: {range: 100}, exclude: ["
    + ",".join(f"{{a: {i}}}" for i in range(900))
    + "]}\n"
    + GO,
    "wrong references": "stages:\n  go: {uses: 'a.b:c', inputs: {"
    + ",".join(f"i{i}: '{'x' * 30}{i}.'" for i in range(10_000))
    + "}}\n",
    "a long name": f"stages:\n  {'x' * 100_000}: {{uses: 'a.b:c'}}\n",
    "a long reference": f"stages:\n  go: {{uses: 'a.b:c', inputs: {{x: {'x' * 900_000}}}}}\n",
    "a long body": f"stages:\n  go: {{uses: {'a.' * 400_000}}}\n",
    "a long duration": f"stages:\n  go: {{uses: 'a.b:c', timeout: {'1 ' * 400_000}}}\n",
    "a wide value": "stages:\n  go: {uses: 'a.b:c', with: {a: [" + "1," * 90_000 + "]}}\n",
    "deep loops": "stages:\n"
    + "".join(f"{'  ' * i}a{i}: {{iterate: {{times: 1}}, stages: {{" for i in range(14))
    + "}}" * 14,
}


@pytest.mark.parametrize("name", CASES)
def test_within_a_second(name: str) -> None:
    for _ in range(3):  # a busy machine may slow down one of them
        began = time.process_time()
        try:
            plan, document = load_plan("plan.yaml", f"dsec: 1\nname: x\n{CASES[name]}")
            found = check(plan, document)
        except PlanError as error:
            found = list(error.problems)
        took = time.process_time() - began
        if took < 1:
            break
    assert took < 1
    assert all(len(problem.message) < 1000 for problem in found)
