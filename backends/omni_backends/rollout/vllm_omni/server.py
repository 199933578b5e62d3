"""The engine's process: `python -m omni_backends.rollout.vllm_omni.server FD` serves one vLLM-Omni over a socket.

It ends when the other side does. Answers are {'id', 'ok', 'value'} or {'id', 'ok', 'error'}, in any order.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

from omni_backends.rollout.vllm_omni.wire import HEADER, body_length, decode, encode


class Server:
    """One engine and its one client.

    Args:
        front: vLLM-Omni's `AsyncOmni`.
        reader / writer: of the socket.
    """

    def __init__(self, front: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._front, self._reader, self._writer = front, reader, writer
        self._tasks: set[asyncio.Task[None]] = set()
        self._drawing: dict[str, asyncio.Task[Any]] = {}

    async def run(self) -> None:
        """Until the client hangs up or asks to stop."""
        await self.send({"id": 0, "ok": True, "value": None})
        while (request := await self._next()) is not None and request["operation"] != "stop":
            task = asyncio.create_task(self._answer(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def send(self, answer: Mapping[str, Any]) -> None:
        """Write one frame."""
        self._writer.write(encode(answer))
        await self._writer.drain()

    async def _next(self) -> dict[str, Any] | None:
        try:
            header = await self._reader.readexactly(HEADER.size)
            request: dict[str, Any] = decode(await self._reader.readexactly(body_length(header)))
        except asyncio.IncompleteReadError:
            return None
        return request

    async def _answer(self, request: Mapping[str, Any]) -> None:
        try:
            operation = getattr(self, f"do_{request['operation']}")
            answer = {"id": request["id"], "ok": True, "value": await operation(**request["arguments"])}
        except Exception as error:  # noqa: BLE001 - the boundary of the process: the client raises it
            answer = {"id": request["id"], "ok": False, "error": f"{type(error).__name__}: {error}"}
        await self.send(answer)

    async def do_generate(self, request: dict[str, Any], engine_id: str, lora: dict[str, Any] | None) -> Any:
        """Draw one of our requests; its trajectory, or None where it was aborted."""
        task = self._drawing[engine_id] = asyncio.create_task(self._drawn(request, engine_id, lora))
        await asyncio.wait([task])
        del self._drawing[engine_id]
        return None if task.cancelled() else task.result()

    async def _drawn(self, request: dict[str, Any], engine_id: str, lora: dict[str, Any] | None) -> Any:
        params = sampling_parameters(request, lora)
        last: Any = None
        prompt = {"prompt": request["prompt"] or " "}
        async for output in self._front.generate(prompt, request_id=engine_id, sampling_params_list=[params]):
            last = output
        if getattr(last, "error", None):
            raise RuntimeError(last.error)
        return None if last is None else (last.multimodal_output or {}).get("trajectory")

    async def do_abort(self, engine_ids: list[str]) -> None:
        """End requests, wherever they are on their way; those that compute stop before their next step.

        A cancelled generation aborts its request in the engine itself.
        """
        tasks = [task for name in engine_ids if (task := self._drawing.get(name)) is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def do_rpc(self, method: str, arguments: dict[str, Any], timeout_s: float) -> list[Any]:
        """One of the worker extension's calls; failures that the engine returns as values are raised."""
        results = await self._front.collective_rpc(method, timeout=timeout_s, kwargs=arguments)
        answers = flat(results)
        for answer in answers:
            if not isinstance(answer, Mapping) or "ok" not in answer:
                raise RuntimeError(f"{method} was answered with {answer!r:.500}")
        return answers

    async def do_sleep(self, level: int) -> list[dict[str, Any]]:
        """Acknowledgements of all stages."""
        return [acknowledgement(ack) for ack in await self._front.sleep(level=level)]

    async def do_wake(self) -> list[dict[str, Any]]:
        """Acknowledgements of all stages."""
        return [acknowledgement(ack) for ack in await self._front.wake_up()]


def sampling_parameters(request: Mapping[str, Any], lora: Mapping[str, Any] | None) -> Any:
    """The engine's parameters: what it batches and counts by, and our own request inside."""
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    from omni_backends.rollout.vllm_omni.messages import KEY
    from omni_backends.rollout.vllm_omni.requests import policy_lora_request

    more: dict[str, Any] = {}
    if lora is not None:
        more = {"lora_request": policy_lora_request(lora["folder"]), "lora_scale": float(lora["scale"])}
    return OmniDiffusionSamplingParams(
        height=request["height"],
        width=request["width"],
        num_frames=request["num_frames"],
        num_inference_steps=len(request["schedule"]["sigmas"]) - 1,
        guidance_scale=request["guidance_scale"],
        seed=0,
        extra_args={KEY: dict(request)},
        **more,
    )


def acknowledgement(ack: Any) -> dict[str, Any]:
    """An `OmniACK` as plain values; anything else is no success."""
    return {
        "status": str(getattr(ack, "status", "")),
        "stage": getattr(ack, "stage_id", None),
        "bytes": int(getattr(ack, "freed_bytes", 0) or 0),
        "error": str(getattr(ack, "error_msg", None) or (ack if not hasattr(ack, "status") else "")),
    }


def flat(results: Any) -> list[Any]:
    """Answers out of the lists per stage and replica."""
    if not isinstance(results, list | tuple):
        return [results]
    return [answer for result in results for answer in flat(result)]


def start(arguments: Mapping[str, Any]) -> Any:
    """A running `AsyncOmni`."""
    from vllm_omni.entrypoints.async_omni import AsyncOmni
    from vllm_omni.plugins import load_omni_general_plugins

    load_omni_general_plugins()
    return AsyncOmni(**arguments)


async def serve(connection: socket.socket) -> int:
    """Start the engine as the first frame says, then answer until the end; the process's exit status."""
    reader, writer = await asyncio.open_connection(sock=connection)
    header = await reader.readexactly(HEADER.size)
    arguments = decode(await reader.readexactly(body_length(header)))
    try:
        front = await asyncio.to_thread(start, arguments)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: the client raises it
        writer.write(encode({"id": 0, "ok": False, "error": f"{type(error).__name__}: {error}"}))
        await writer.drain()
        return 1
    try:
        await Server(front, reader, writer).run()
    except ConnectionError:
        return 1  # the client is gone
    finally:
        await asyncio.to_thread(front.shutdown)
    return 0


def main() -> None:
    """Serve the socket whose file descriptor is the first argument."""
    status = asyncio.run(serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the engine's threads would keep the process


if __name__ == "__main__":
    main()
