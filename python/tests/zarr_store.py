"""zarr's own tests of stores, for FileStore. test_zarr.py runs them by pytest."""

import pathlib
from typing import Any

import pytest
from hostbuf.zarr import FileStore
from zarr.core.buffer import Buffer, cpu
from zarr.testing.store import StoreTests


class TestFileStore(StoreTests[FileStore, cpu.Buffer]):
    store_cls = FileStore
    buffer_cls = cpu.Buffer

    async def get(self, store: FileStore, key: str) -> Buffer:
        return self.buffer_cls.from_bytes((store.root / key).read_bytes())

    async def set(self, store: FileStore, key: str, value: Buffer) -> None:
        path = store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value.to_bytes())

    @pytest.fixture
    def store_kwargs(self, tmp_path: pathlib.Path) -> "dict[str, Any]":
        return {"root": tmp_path}

    def test_store_repr(self, store: FileStore) -> None:
        assert repr(store) == f"FileStore('file://{store.root.as_posix()}')"

    def test_store_supports_writes(self, store: FileStore) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: FileStore) -> None:
        assert store.supports_listing


class TestTransfers(TestFileStore):
    """zarr's tests without short requests."""

    @pytest.fixture(autouse=True)
    def no_short_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hostbuf.zarr._SHORT", -1)
