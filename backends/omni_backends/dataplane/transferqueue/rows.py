"""Rows of one TransferQueue: a key, columns of bytes and a tag. Everything here may be called from any thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import torch
from transfer_queue.client import AsyncTransferQueueClient
from transfer_queue.metadata import BatchMeta

from omni_backends.dataplane.transferqueue.service import BACKEND, Service
from omni_backends.rollout.external.loop import cancel_all
from omni_portable.contracts.errors import ClusterError

log = logging.getLogger(__name__)
Result = TypeVar("Result")
Tag = dict[str, int]
Parts = Sequence[torch.Tensor]
"""A column of a row: rows of bytes, which travel as they are."""

PARTITION = "groups"
SIZE, HERE = "bytes", "here"
"""Of a row's tag: bytes of all of it, and of what TransferQueue itself holds of it."""
AT_ONCE, HERE_AT_ONCE = 64 << 20, 4 << 20
"""Bytes of rows that are read together, if it is more than one; and of what TransferQueue itself holds of them."""


class _OneRow(dict[str, list[list[torch.Tensor]]]):
    """One row as the storage manager reads a batch. A list of tensors goes through it untouched, while it would copy
    the tensors of a `TensorDict` into one."""

    batch_size = (1,)

    def __init__(self, columns: Mapping[str, Parts]) -> None:
        super().__init__({name: [list(parts)] for name, parts in columns.items()})


class Rows:
    """A client with an event loop of its own.

    The storage manager is called directly, because the client's own put and get set the number of threads of torch for
    the whole process, which a training step beside them must not see.

    Args:
        timeout_s: for one call.
    """

    def __init__(self, service: Service, timeout_s: float) -> None:
        self._name, self._timeout_s = service.name, timeout_s
        self._leaving, self._left = threading.Lock(), False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="transferqueue", daemon=True)
        self._thread.start()
        settings = service.settings
        self._client = AsyncTransferQueueClient(f"omni-portable-{uuid.uuid4().hex[:8]}", settings.controller.zmq_info)
        self._client.initialize_storage_manager(BACKEND, settings.backend[BACKEND])

    def put(self, key: str, columns: Mapping[str, Parts], tag: Tag, kept: Awaitable[Any] | None = None) -> bool:
        """Store a row; False where a row of this key is stored already. The tag is set last: a row with a tag is whole.

        Args:
            kept: what must have succeeded elsewhere before the tag is set; whatever that raises is raised here.

        Raises:
            ClusterError: TransferQueue does not answer, or failed. Nothing is stored then under this key.
        """
        return self._wait(self._put(key, columns, tag, kept))

    def get(self, keys: Sequence[str], columns: Sequence[str]) -> Iterator[list[list[Parts]]] | None:
        """In portions, for each key the parts of each column; None where a row or a column of it is not there. While
        the caller looks at one portion, the next is on its way."""
        meta = self._wait(self._client.async_kv_retrieve_meta(list(keys), PARTITION, create=False))
        if meta.size != len(keys) or not set(columns) <= set(meta.field_names):
            return None
        return self._read(meta.select_fields(list(columns)), columns)

    def _read(self, meta: BatchMeta, columns: Sequence[str]) -> Iterator[list[list[Parts]]]:
        portions = [meta.select_samples(indices) for indices in together(meta.get_all_custom_meta())]
        coming = self._begin(self._rows(portions[0], columns))
        for index in range(1, len(portions) + 1):
            rows = self._answer(coming)
            if index < len(portions):
                coming = self._begin(self._rows(portions[index], columns))
            yield rows

    def clear(self, keys: Sequence[str]) -> None:
        """Remove rows; keys that are not there are passed over."""
        if keys:
            self._wait(self._clear(keys))

    def tags(self) -> dict[str, Tag]:
        """Key -> tag of every row that is whole, in the order they were put."""
        listed = self._wait(self._client.async_kv_list(PARTITION)).get(PARTITION, {})
        return {key: tag for key, tag in listed.items() if tag}

    def whole(self, key: str, columns: Sequence[str]) -> bool:
        """Has the row all columns? Not so once somebody began to remove it."""
        meta = self._wait(self._client.async_kv_retrieve_meta([key], PARTITION, create=False))
        return set(columns) <= set(meta.field_names)

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def close(self) -> None:
        """Leave the queue; what is stored stays there. Calls of other threads that are under way end with an error: a
        program that is stopped in the middle of one must not wait for it."""
        with self._leaving:
            self._left = True
        if not self.closed:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.run_until_complete(cancel_all())
            self._client.close()
            self._loop.close()

    async def _put(self, key: str, columns: Mapping[str, Parts], tag: Tag, kept: Awaitable[Any] | None) -> bool:
        meta = await self._client.async_kv_retrieve_meta([key], PARTITION, create=True)
        if meta.get_all_custom_meta()[0]:
            return False
        await self._client.storage_manager.put_data(_OneRow(columns), meta)
        stored = await self._client.async_kv_retrieve_meta([key], PARTITION, create=False)
        if not set(columns) <= set(stored.field_names):
            raise RuntimeError("its controller did not take note of the row")
        if kept is not None:
            await kept
        stored.update_custom_meta([tag])
        await self._client.async_set_custom_meta(stored)
        return True

    async def _rows(self, meta: BatchMeta, columns: Sequence[str]) -> list[list[Parts]]:
        data = await self._client.storage_manager.get_data(meta)
        return [list(row) for row in zip(*(data.get(name).tolist() for name in columns), strict=True)]

    async def _clear(self, keys: Sequence[str]) -> None:
        meta = await self._client.async_kv_retrieve_meta(list(keys), PARTITION, create=False)
        if meta.size:
            await self._client.async_clear_samples(meta)

    def _wait(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self._answer(self._begin(call))

    def _begin(self, call: Coroutine[Any, Any, Result]) -> Future[Result]:
        with self._leaving:
            if self._left:
                call.close()
                raise self._gone()
            return asyncio.run_coroutine_threadsafe(asyncio.wait_for(call, self._timeout_s), self._loop)

    def _gone(self) -> ClusterError:
        return ClusterError(f"the queue '{self._name}' was left by this process before it answered")

    def _answer(self, future: Future[Result]) -> Result:
        try:
            return future.result()
        except CancelledError as error:
            raise self._gone() from error
        except TimeoutError as error:
            raise ClusterError(
                f"the queue '{self._name}' did not answer within {self._timeout_s:g} seconds: its controller or a "
                "storage process is gone, or its machine is overloaded",
                remedy="look after the machine, then run the same command with --resume; "
                "dataplane.options.answer_timeout_s allows more time",
            ) from error
        except RuntimeError as error:
            raise ClusterError(
                f"the queue '{self._name}' failed: {' '.join(str(error).split())[:300]}",
                remedy="see `ray status` and the output of its processes in Ray's session directory",
            ) from error


def together(tags: Sequence[Tag]) -> list[list[int]]:
    """Positions of rows in portions that are read at once, each with one row or bounded bytes."""
    portions: list[list[int]] = []
    size = here = 0
    for position, tag in enumerate(tags):
        size, here = size + tag[SIZE], here + tag[HERE]
        if not portions or size > AT_ONCE or here > HERE_AT_ONCE:
            portions.append([])
            size, here = tag[SIZE], tag[HERE]
        portions[-1].append(position)
    return portions
