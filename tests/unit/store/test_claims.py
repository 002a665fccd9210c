import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dsec.store import root, system
from dsec.store.catalog import Catalog
from dsec.store.claims import STALE_AFTER, Claims

NOW = 1_000_000.0
KEYS = [f"key{number}" for number in range(5)]
ELSEWHERE = system.Process("elsewhere", 7, 99)


@pytest.fixture
def catalog(store: root.Store) -> Iterator[Catalog]:
    with Catalog(store.catalog) as opened:
        yield opened


def test_a_key_goes_to_one_run(catalog: Catalog) -> None:
    one, two = Claims(catalog, "one"), Claims(catalog, "two")
    assert one.claim_many(KEYS[:3], NOW) == set(KEYS[:3])
    assert two.claim_many(KEYS, NOW) == set(KEYS[3:])
    assert not two.claim(KEYS[0], NOW)
    assert two.holders([KEYS[0], KEYS[4], "free"]) == {
        KEYS[0]: ("one", system.this_process(), NOW),
        KEYS[4]: ("two", system.this_process(), NOW),
    }


def test_claiming_again_is_winning_again(catalog: Catalog) -> None:
    one = Claims(catalog, "one")
    assert one.claim_many(KEYS, NOW) == one.claim_many([*KEYS, *KEYS], NOW + 1) == set(KEYS)
    assert one.claim_many([], NOW) == set()


def test_more_keys_than_one_statement_takes(catalog: Catalog) -> None:
    many = [f"key{number}" for number in range(2500)]
    one = Claims(catalog, "one")
    assert one.claim_many(many, NOW) == set(many)
    assert Claims(catalog, "two").claim_many(many, NOW) == set()
    one.release(many)
    assert one.holders(many) == {}


def test_what_is_released_is_free(catalog: Catalog) -> None:
    one, two = Claims(catalog, "one"), Claims(catalog, "two")
    one.claim_many(KEYS, NOW)
    two.release(KEYS)
    assert two.claim_many(KEYS, NOW) == set()
    one.release(KEYS[:2])
    assert two.claim_many(KEYS, NOW) == set(KEYS[:2])
    one.release_all()
    assert two.claim_many(KEYS, NOW) == set(KEYS)


def test_a_process_of_the_same_number_but_another_start_is_gone(catalog: Catalog) -> None:
    me = system.this_process()
    Claims(catalog, "one", replace(me, started=me.started - 1)).claim_many(KEYS, NOW)
    assert Claims(catalog, "two").claim_many(KEYS, NOW) == set(KEYS)


def test_a_claim_of_another_host_holds_while_its_heart_beats(catalog: Catalog) -> None:
    far, here = Claims(catalog, "far", ELSEWHERE), Claims(catalog, "here")
    far.claim_many(KEYS, NOW)
    assert here.claim_many(KEYS, NOW + STALE_AFTER - 1) == set()
    far.heartbeat(NOW + STALE_AFTER)
    assert here.claim_many(KEYS, NOW + 2 * STALE_AFTER - 1) == set()
    assert here.claim_many(KEYS, NOW + 2 * STALE_AFTER) == set(KEYS)


def test_a_claim_of_this_host_holds_however_old_it_is(catalog: Catalog) -> None:
    Claims(catalog, "one").claim_many(KEYS, NOW)
    assert Claims(catalog, "two").claim_many(KEYS, NOW + 1e6) == set()


HOLD = """
import sys
from pathlib import Path
from dsec.store.catalog import Catalog
from dsec.store.claims import Claims
with Catalog(Path(sys.argv[1])) as catalog:
    print(len(Claims(catalog, "other").claim_many(sys.argv[2:], 1.0)), flush=True)
    sys.stdin.read()
"""


def test_the_claims_of_a_killed_process_break_at_once(catalog: Catalog) -> None:
    command = [sys.executable, "-c", HOLD, str(catalog.path), *KEYS]
    project = str(Path(__file__).parents[3])
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": project}
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "5\n"
        mine = Claims(catalog, "mine")
        assert mine.claim_many([*KEYS, "free"], NOW) == {"free"}
        other.kill()
        other.wait()
    assert mine.claim_many(KEYS, NOW) == set(KEYS)


def test_of_drivers_that_claim_together_each_key_has_one_winner(store: root.Store) -> None:
    many = [f"key{number}" for number in range(100)]

    def drive(number: int) -> list[str]:
        with Catalog(store.catalog) as catalog:
            claims = Claims(catalog, f"run {number}")
            return sorted(claims.claim_many(many[number::2], NOW) | claims.claim_many(many, NOW))

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(drive, range(6)))
    assert sorted(key for keys in won for key in keys) == sorted(many)
