"""Blocks of a pool between the nodes of a dora dataflow, with unmodified dora-rs.

dora passes a token of 48 bytes, and the nodes share the block itself. A camera node sends blocks:

    pool = hostbuf.Pool("camera")
    producer = pool.producer(shape=(1080, 1920, 4), dtype="uint8")
    for event in node:
        if event["type"] == "INPUT":
            with producer.block() as block:
                camera.read_into(block.numpy())
                hostbuf.dora.send(node, "frame", block)

and a node with its output as an input reads them in place:

    for event in node:
        frame = hostbuf.dora.receive(event, pool)
        if frame is not None:
            with frame:
                show(frame.numpy())

A frame that comes too late raises ``BlockGoneError``: the producer retains the last ones only.
:class:`NamedBlocks` keeps blocks for longer, under names.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

#: The key of the metadata of an output that is a token.
MARKER = "hostbuf"
#: The value of that key: the version of the token.
VERSION = "token-1"
#: The length of a token in bytes.
TOKEN_BYTES = 48
#: The namespace in dora's extension table.
NAMESPACE = "hostbuf"


def send(node: Any, output_id: str, block: Any, metadata: dict[str, Any] | None = None) -> bytes:
    """Sends a block, and returns its token.

    Args:
        node: the ``dora.Node``.
        output_id: the output, as the dataflow names it.
        block: a block that is being written, which is published, or the token of a published one.
        metadata: further metadata of the output.

    Raises:
        ValueError: the metadata has the key that marks tokens, or the bytes are no token.
    """
    if metadata and MARKER in metadata:
        raise ValueError(f'invalid metadata: the key "{MARKER}" marks tokens; use another one')
    found = _published(block)
    node.send_output(output_id, found, {**(metadata or {}), MARKER: VERSION})
    return found


def token(event: Any) -> bytes | None:
    """Returns the token of an event, or ``None`` if the event has none.

    Raises:
        ValueError: the sender uses another version of hostbuf.
    """
    if event["type"] != "INPUT":
        return None
    version = (event["metadata"] or {}).get(MARKER)
    if version is None:
        return None
    if version != VERSION:
        raise ValueError(
            f'the input {event["id"]} has a token of version "{version}", not "{VERSION}": use one version of hostbuf in all nodes'
        )
    return _bytes(event["value"])


def receive(event: Any, pool: Any = None) -> Any:
    """Returns the block of an event as a ``BlockRef`` of ``pool``, or its token without a pool, or
    ``None`` if the event is no token: an ordinary input, or another type of event.

    Raises:
        BlockGoneError: the producer has reused the block meanwhile, or has ended.
        PoolError: the block cannot be attached, such as in a node on another host.
        ValueError: the sender uses another version of hostbuf.
    """
    found = token(event)
    return found if found is None or pool is None else pool.acquire(found)


def _bytes(value: Any) -> bytes:
    """Returns the bytes of an Arrow array of type ``uint8``."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    data = value.buffers()[1]
    return b"" if data is None else bytes(memoryview(data)[value.offset : value.offset + len(value)])


class NamedBlocks:
    """Blocks with names in a dataflow, for content that lives longer than a frame: a map, weights,
    a calibration. A node that starts late finds them.

    The names are entries of dora's extension table: dora drops them when the node ends that has
    stored them, however it ends. A node that holds such a block then keeps it. A name does not keep
    its block, so the blocks come from a producer of their own, which retains as many as there are
    names:

        maps = pool.producer(shape=(4096, 4096), blocks=3, retain=2)
        names = hostbuf.dora.NamedBlocks(node, pool)
        names.store("map", maps.publish(map))           # in one node
        with names.load("map") as block: ...            # in the others

    Leaving its ``with`` block drops the names that this object has stored.
    """

    def __init__(self, node: Any, pool: Any) -> None:
        self._node = node
        self._pool = pool
        self._stored: set[str] = set()

    def __enter__(self) -> NamedBlocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def store(self, name: str, block: Any) -> bytes:
        """Gives a name to a block that is being written, which is published, or to the token of a
        published one. Returns the token. Another block of this node may have had the name."""
        found = _published(block)
        self._node.extension_store(NAMESPACE, name, found)
        self._stored.add(name)
        return found

    def load(self, name: str) -> Any:
        """Returns the block of a name as a ``BlockRef``, or ``None`` if there is no such name.

        Raises:
            BlockGoneError: the producer does not retain the block any more, or has ended.
        """
        found = self._node.extension_load(NAMESPACE, name)
        return None if found is None else self._pool.acquire(bytes(found))

    def drop(self, name: str) -> None:
        """Drops a name that this object has stored. Without such a name it does nothing."""
        if name in self._stored:
            self._node.extension_drop(NAMESPACE, name)
            self._stored.discard(name)

    def dropped(self) -> list[str]:
        """Returns the names that were dropped since the last call, of those that this node has
        stored or loaded: their nodes have ended, or have dropped them."""
        names = list(self._node.drain_dropped_extension_keys(NAMESPACE))
        self._stored.difference_update(names)
        return names

    def close(self) -> None:
        """Drops all names that this object has stored. Closing it again does nothing."""
        for name in sorted(self._stored):
            self.drop(name)


def _published(block: Any) -> bytes:
    """Returns the token of a block, which is published, or the token itself."""
    publish = getattr(block, "publish", None)
    found = bytes(block) if publish is None else bytes(publish())
    if len(found) != TOKEN_BYTES:
        raise ValueError(f"invalid token of {len(found)} bytes: expected a block, or the {TOKEN_BYTES} bytes of a token")
    return found
