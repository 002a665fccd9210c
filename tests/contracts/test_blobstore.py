import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dsec.store.blobs import LocalBlobs
from dsec.testing.blobstore import BlobStoreContract


class TestLocalGroup(BlobStoreContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> LocalBlobs:
        return LocalBlobs(tmp_path)


class TestLocalStrict(BlobStoreContract):
    @pytest.fixture
    def blobs(self, tmp_path: Path) -> LocalBlobs:
        return LocalBlobs(tmp_path, "strict")


NAMES = st.sampled_from(["a", "b/1", "b/2", "b/c/1", "b-c"])
CONTENT = st.binary(max_size=3)


class LocalAgainstModel(RuleBasedStateMachine):
    """Any order of calls leaves what a dictionary would hold."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dsec-blobs-"))
        self.blobs = LocalBlobs(self.folder)
        self.model: dict[str, bytes] = {}
        self.quarantined: dict[str, bytes] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(name=NAMES, content=CONTENT)
    def put(self, name: str, content: bytes) -> None:
        self.blobs.put(name, [content])
        if len(self.model.get(name, content)) != len(content) or name not in self.model:
            self.model[name] = content

    @rule(name=NAMES, content=CONTENT)
    def put_new(self, name: str, content: bytes) -> None:
        assert self.blobs.put_new(name, [content]) == (name not in self.model)
        self.model.setdefault(name, content)

    @rule(name=NAMES, content=CONTENT)
    def replace(self, name: str, content: bytes) -> None:
        self.blobs.replace(name, [content])
        self.model[name] = content

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.blobs.remove(name)
        self.model.pop(name, None)

    @rule(name=NAMES)
    def quarantine(self, name: str) -> None:
        self.blobs.quarantine(name)
        if name in self.model:
            number = sum(1 for kept in self.quarantined if kept.startswith(f"quarantine/{name}."))
            self.quarantined[f"quarantine/{name}.{number}"] = self.model.pop(name)

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        everything = self.model | self.quarantined
        assert list(self.blobs.names("")) == sorted(everything)
        assert {name: self.blobs.get(name) for name in everything} == everything

    @invariant()
    def leaves_no_temporary_file(self) -> None:
        assert not list((self.folder / "tmp").glob("*"))


TestLocalAgainstModel = LocalAgainstModel.TestCase
TestLocalAgainstModel.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
