import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dsec.core.specs import AgentSpec, CodeRef
from dsec.core.stage import Recipe
from dsec.errors import AbsentError, CorruptObject, StateError, StoreError
from dsec.store import root


def recipe(**config: object) -> Recipe:
    agent = AgentSpec(code=CodeRef(uses="examples.ppo:PPO", fingerprint="0" * 64), config={"lr": 2.5e-4})
    return Recipe("dsec.stages:learn", "1" * 64, config, agent=agent, seed=3, outputs=(("agent", None), ("state", 25)))


def test_a_store_keeps_its_id(tmp_path: Path) -> None:
    first = root.open_store(tmp_path / "new" / "store")
    assert len(first.store_id) == 32
    assert root.open_store(str(tmp_path / "new" / "store")) == first
    assert root.open_store(tmp_path / "other").store_id != first.store_id


def test_drivers_that_open_a_new_store_together_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: root.open_store(tmp_path / "store").store_id, range(8)))
    assert len(ids) == 1


def test_a_store_that_must_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no store.*dsec run"):
        root.open_store(tmp_path / "store", create=False)
    assert not (tmp_path / "store").exists()


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    for create in (True, False):
        with pytest.raises(StoreError, match="directory"):
            root.open_store(tmp_path / "store", create=create)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "null"])
def test_a_broken_format_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "format.json").write_text(text)
    with pytest.raises(StoreError, match=r"format\.json"):
        root.open_store(tmp_path)


@pytest.mark.parametrize("number", [0, 2, "1"])
def test_an_unknown_format_is_refused(tmp_path: Path, number: object) -> None:
    (tmp_path / "format.json").write_text(json.dumps({"format": number, "store_id": "x"}))
    with pytest.raises(StoreError, match=f"format {number!r}, this DSec reads 1"):
        root.open_store(tmp_path)


def test_objects_without_a_format_are_not_taken_over(tmp_path: Path) -> None:
    (tmp_path / "anchors").mkdir()
    with pytest.raises(StoreError, match=r"format\.json is missing"):
        root.open_store(tmp_path)


def test_a_sealed_value_comes_back(store: root.Store) -> None:
    value = {"b": [1, 2.5, None, "ü"], "a": {"x": True}}
    root.put_json(store, "classes/x", value)
    assert root.get_json(store, "classes/x") == value


def test_an_absent_value_is_an_error(store: root.Store) -> None:
    with pytest.raises(AbsentError, match="classes/x"):
        root.get_json(store, "classes/x")


def test_replace_and_new_do_what_their_names_say(store: root.Store) -> None:
    assert root.put_new_json(store, "a", 1)
    assert not root.put_new_json(store, "a", 2)
    assert root.get_json(store, "a") == 1
    root.replace_json(store, "a", 3)
    assert root.get_json(store, "a") == 3


def test_every_cut_and_every_flipped_byte_is_noticed() -> None:
    raw = root.seal("a", {"x": 1})
    assert root.unseal("a", raw) == {"x": 1}
    for length in range(len(raw)):
        with pytest.raises(CorruptObject):
            root.unseal("a", raw[:length])
    for place in range(len(raw)):
        with pytest.raises(CorruptObject):
            root.unseal("a", raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])


def test_a_whole_object_under_another_name_is_damage() -> None:
    with pytest.raises(CorruptObject, match="b is damaged"):
        root.unseal("b", root.seal("a", 1))


def test_a_damaged_object_goes_to_quarantine_and_can_be_written_again(store: root.Store) -> None:
    store.blobs.put("a", [root.seal("a", 1)[:-1] + b"]"])
    with pytest.raises(CorruptObject):
        root.get_json(store, "a")
    root.put_json(store, "a", 1)
    assert root.get_json(store, "a") == 1
    assert store.blobs.size("quarantine/a.0") == len(root.seal("a", 1))


def test_a_recipe_comes_back_the_same(store: root.Store) -> None:
    digest = root.put_recipe(store, recipe(lr=1e-3, layers=[64, 64], n=1))
    found = root.get_recipe(store, digest)
    assert found == recipe(lr=1e-3, layers=[64, 64], n=1)
    assert found.digest() == digest
    assert root.get_recipe(root.open_store(store.path), digest) is found


@pytest.mark.parametrize("value", [(1, 2), {1: 2}])
def test_a_recipe_that_json_would_change_is_refused(store: root.Store, value: object) -> None:
    with pytest.raises(StateError, match=r"dsec\.stages:learn.*JSON"):
        root.put_recipe(store, recipe(x=value))


def test_a_recipe_in_a_store_that_cannot_be_written_is_still_read(store: root.Store) -> None:
    digest = root.put_recipe(store, recipe(x=1))
    name = f"code/{digest[:2]}/{digest}"
    store.blobs.replace(name, [root.seal(name, recipe(x=2).to_json())])
    with pytest.raises(CorruptObject, match="another recipe"):
        root.get_recipe(store, digest)
