import numpy as np
import pytest
import xxhash

from dsec.runtime import chain


def by_definition(previous, seen, done, rewards, flags, ends):
    hashes = []
    for at, reward in enumerate(rewards):
        row = seen[at] + done[at] + np.float64(reward).tobytes() + bytes([flags[at]]) + ends.get(at, b"")
        previous = xxhash.xxh3_128_digest(previous + row)
        hashes.append(previous)
    return hashes


@pytest.fixture
def block():
    rewards = np.array([0.5, -0.0, 1e300, 2.0])
    flags = np.array([0, 1, 2, 3], np.uint8)
    return [b"aa", b"bb", b"cc", b"dd"], [b"0", b"1", b"2", b"3"], rewards, flags


def test_a_block_is_linked_row_by_row(block):
    seen, done, rewards, flags = block
    ends = {1: b"final", 3: b"final" + b"s" * 16}
    expected = by_definition(chain.START, seen, done, rewards, flags, ends)
    assert chain.extend(chain.START, (seen, done), rewards, flags, ends) == expected
    assert all(len(link) == chain.SIZE for link in expected)


def test_where_a_block_is_cut_does_not_show(block):
    seen, done, rewards, flags = block
    whole = chain.extend(chain.START, (seen, done), rewards, flags, {2: b"x"})
    head = chain.extend(chain.START, (seen[:2], done[:2]), rewards[:2], flags[:2], {})
    tail = chain.extend(head[-1], (seen[2:], done[2:]), rewards[2:], flags[2:], {0: b"x"})
    assert head + tail == whole


@pytest.mark.parametrize("column", range(4))
def test_every_column_counts(block, column):
    whole = chain.extend(chain.START, block[:2], *block[2:], {})
    changed = [list(part) for part in block]
    changed[column][1] = {0: b"bx", 1: b"x", 2: 0.25, 3: 0}[column]
    seen, done, rewards, flags = changed
    other = chain.extend(chain.START, (seen, done), np.array(rewards), np.array(flags, np.uint8), {})
    assert other[0] == whole[0]
    assert other[1:] != whole[1:] and all(a != b for a, b in zip(other[1:], whole[1:], strict=True))


def test_minus_zero_is_not_zero(block):
    seen, done, _, flags = block
    links = [chain.extend(chain.START, (seen, done), np.full(4, zero), flags, {})[0] for zero in (0.0, -0.0)]
    assert links[0] != links[1]


def test_the_bytes_of_format_1_stay():
    link = chain.link(chain.START, b"observation" + b"action" + np.float64(1).tobytes() + b"\x01")
    assert link.hex() == "33ac65c04ac59bd06af64c81a00084b9"
