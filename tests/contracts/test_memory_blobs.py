import pytest

from dsec.testing.blobs import MemoryBlobs
from dsec.testing.blobstore import BlobStoreContract


class TestMemory(BlobStoreContract):
    @pytest.fixture
    def blobs(self) -> MemoryBlobs:
        return MemoryBlobs()
