"""Blocks in a dora dataflow, with a node that records what dora would be asked. A real dataflow is
in examples/dora_camera."""

import unittest
from typing import Any

import hostbuf
import hostbuf.dora
import hostbuf.dora_broker

TOKEN = bytes(range(48))


class RecordingNode:
    """A node that keeps its outputs and a table of its own."""

    def __init__(self) -> None:
        self.outputs: list[tuple[str, Any, Any]] = []
        self.table: dict[tuple[str, str], bytes] = {}
        self.drained: list[str] = []

    def send_output(self, output_id: str, data: Any, metadata: Any = None) -> None:
        self.outputs.append((output_id, data, metadata))

    def extension_store(self, namespace: str, key: str, value: bytes) -> None:
        if key == "full":
            raise RuntimeError("the table is full")
        self.table[namespace, key] = value

    def extension_load(self, namespace: str, key: str) -> Any:
        return self.table.get((namespace, key))

    def extension_drop(self, namespace: str, key: str) -> None:
        self.table.pop((namespace, key), None)

    def drain_dropped_extension_keys(self, namespace: str) -> list[str]:
        drained, self.drained = self.drained, []
        return drained

    def event(self) -> dict[str, Any]:
        """Returns the event of the last output, as another node gets it."""
        output_id, data, metadata = self.outputs[-1]
        return {"type": "INPUT", "id": output_id, "value": ArrowBytes(data), "metadata": metadata}


class ArrowBytes:
    """The part of an Arrow array of bytes that matters: a slice of a larger buffer."""

    def __init__(self, data: bytes) -> None:
        self.data, self.offset = data, 3

    def __len__(self) -> int:
        return len(self.data)

    def buffers(self) -> list[Any]:
        return [None, b"xyz" + self.data + b"z"]


class RecordingPool:
    """A pool whose holds are recorded."""

    def __init__(self) -> None:
        self.held: list[bytes] = []

    def acquire(self, token: bytes) -> "RecordedHold":
        self.held.append(token)
        return RecordedHold(token)


class RecordedHold:
    def __init__(self, token: bytes) -> None:
        self.token = token


class WritableBlock:
    def publish(self) -> bytes:
        return TOKEN


class Sending(unittest.TestCase):
    def test_a_block_and_a_token_arrive(self) -> None:
        node, pool = RecordingNode(), RecordingPool()
        for block in (WritableBlock(), TOKEN, memoryview(TOKEN)):
            self.assertEqual(hostbuf.dora.send(node, "frame", block, {"exposure": 3}), TOKEN)
            self.assertEqual(node.outputs[-1], ("frame", TOKEN, {"exposure": 3, "hostbuf": "token-1"}))
            self.assertEqual(hostbuf.dora.receive(node.event()), TOKEN)
            self.assertEqual(hostbuf.dora.receive(node.event(), pool).token, TOKEN)

    def test_other_events_are_no_blocks(self) -> None:
        node, pool = RecordingNode(), RecordingPool()
        for event in (
            {"type": "STOP"},
            {"type": "INPUT_CLOSED", "id": "frame"},
            {"type": "INPUT", "id": "frame", "value": ArrowBytes(TOKEN), "metadata": {"exposure": 3}},
            {"type": "INPUT", "id": "frame", "value": ArrowBytes(TOKEN), "metadata": None},
        ):
            self.assertIsNone(hostbuf.dora.receive(event, pool))
        self.assertEqual((node.outputs, pool.held), ([], []))

    def test_mistakes_are_refused(self) -> None:
        node = RecordingNode()
        with self.assertRaisesRegex(ValueError, 'the key "hostbuf" marks tokens'):
            hostbuf.dora.send(node, "frame", TOKEN, {"hostbuf": 1})
        with self.assertRaisesRegex(ValueError, "invalid token of 47 bytes"):
            hostbuf.dora.send(node, "frame", TOKEN[1:])
        self.assertEqual(node.outputs, [])
        node.send_output("frame", TOKEN, {"hostbuf": "token-2"})
        with self.assertRaisesRegex(ValueError, 'the input frame has a token of version "token-2"'):
            hostbuf.dora.receive(node.event())


class Naming(unittest.TestCase):
    def test_a_name_leads_to_its_block(self) -> None:
        node, pool = RecordingNode(), RecordingPool()
        other = bytes(48)
        with hostbuf.dora.NamedBlocks(node, pool) as names:
            names.store("map", WritableBlock())
            self.assertEqual(node.table, {("hostbuf", "map"): TOKEN})
            names.store("map", other)
            names.store("weights", TOKEN)
            self.assertEqual(names.load("map").token, other)
            self.assertIsNone(names.load("calibration"))
            with self.assertRaisesRegex(RuntimeError, "full"):
                names.store("full", TOKEN)
            names.drop("map")
            names.drop("full")
            self.assertEqual(node.table, {("hostbuf", "weights"): TOKEN})
        self.assertEqual((pool.held, node.table), ([other], {}))
        names.close()

    def test_the_end_of_a_name_is_told(self) -> None:
        node = RecordingNode()
        names = hostbuf.dora.NamedBlocks(node, RecordingPool())
        names.store("map", TOKEN)
        node.drained = ["map", "other"]
        self.assertEqual(names.dropped(), ["map", "other"])
        self.assertEqual(names.dropped(), [])
        # Another node may have the name now.
        names.close()
        self.assertEqual(node.table, {("hostbuf", "map"): TOKEN})


class BrokerNode(unittest.TestCase):
    def test_the_broker_listens_where_the_nodes_look_for_it(self) -> None:
        for given, pool, expected in (
            (["--limit", "1G"], "@camera", ["--limit", "1G", "--name", "camera"]),
            ([], "/run/pool", ["--path", "/run/pool"]),
            (["--name", "mine"], "@camera", ["--name", "mine"]),
            (["--path=/run/mine"], "@camera", ["--path=/run/mine"]),
            (["--idle", "60"], "auto", ["--idle", "60"]),
            ([], "", []),
        ):
            self.assertEqual(hostbuf.dora_broker.with_address(given, pool), expected)


@unittest.skipUnless(hasattr(hostbuf, "Pool"), "this build has no pools")
class RealPool(unittest.TestCase):
    def test_a_frame_is_read_in_place(self) -> None:
        node, pool = RecordingNode(), hostbuf.Pool("test", mode="private")
        producer = pool.producer(shape=(4, 5), dtype="uint16", blocks=4, retain=1)
        with producer.block() as block:
            block.numpy()[...] = 7
            hostbuf.dora.send(node, "frame", block)
        with hostbuf.dora.receive(node.event(), pool) as frame:
            self.assertEqual((frame.shape, int(frame.numpy().sum())), ((4, 5), 140))
        maps = pool.producer(shape=(4, 5), dtype="uint16", blocks=2, retain=1)
        with hostbuf.dora.NamedBlocks(node, pool) as names:
            names.store("map", maps.block())
            first = node.event()
            for _ in range(10):
                hostbuf.dora.send(node, "frame", producer.block(timeout=1))
            with names.load("map") as found:
                self.assertEqual(found.shape, (4, 5))
            with self.assertRaises(hostbuf.PoolError):
                hostbuf.dora.receive(first, pool)


if __name__ == "__main__":
    unittest.main()
