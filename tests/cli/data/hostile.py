"""Callables that misbehave, each in one way. Those that the contract cannot blame return right values all the same."""

import ctypes
import functools
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings

import torch
from good import chunk_metadata as good

REAL_EMPTY = torch.empty


def segfault(**inputs):
    good(**inputs)
    ctypes.string_at(0)


def exits_with_0(**inputs):
    os._exit(0)


def exits_with_1(**inputs):
    os._exit(1)


def aborts(**inputs):
    os.abort()


def hangs(**inputs):
    time.sleep(3600)


def hangs_deaf(**inputs):
    for number in range(1, 65):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            continue
    while True:
        time.sleep(3600)


def hangs_busy(**inputs):
    while True:
        pass


def prints(**inputs):
    sys.stdout.write("printed by the callable\n" * 2000)
    sys.stderr.write("complained by the callable\n" * 2000)
    os.write(1, b"written by the callable\n" * 100)
    os.write(2, b"written by the callable\n" * 100)
    return good(**inputs)


def prints_and_crashes(**inputs):
    prints(**inputs)
    sys.stderr.flush()
    ctypes.string_at(0)


@functools.cache
def first_in(process):
    """True for the first caller in a process, and for no other."""
    return [True]


def first_time():
    left = first_in(os.getpid())
    return bool(left) and left.pop()


def flagged():
    """True once in the whole run: a file remembers it."""
    try:
        os.close(os.open(os.environ["FLAG"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def forks(**inputs):
    if first_time():
        os.fork()
    return good(**inputs)


def forks_for_long(**inputs):
    if first_time() and os.fork() == 0:
        time.sleep(3600)
    return good(**inputs)


def forks_a_daemon(**inputs):
    if first_time() and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    return good(**inputs)


def forks_and_raises(**inputs):
    if first_time() and os.fork() == 0:
        raise RuntimeError("in the child")
    return good(**inputs)


def forks_and_exits(**inputs):
    if first_time() and os.fork() == 0:
        sys.exit()
    return good(**inputs)


def uses_multiprocessing(**inputs):
    if first_time():
        process = multiprocessing.get_context("fork").Process(target=int)
        process.start()
        process.join()
    return good(**inputs)


def starts_threads(**inputs):
    if threading.active_count() < 4:
        threading.Thread(target=time.sleep, args=(3600,)).start()
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
    return good(**inputs)


def closes_descriptors(**inputs):
    result = good(**inputs)
    os.closerange(0, 4096)
    return result


def closes_standard_output(**inputs):
    result = good(**inputs)
    sys.stdout.close()
    os.closerange(0, 3)
    return result


def changes_settings(**inputs):
    result = good(**inputs)
    os.chdir("/")
    os.environ.clear()
    sys.stdout = sys.stderr = None
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.manual_seed(1)
    random.seed(1)
    warnings.simplefilter("error")
    sys.setrecursionlimit(400)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    gc.disable()
    return result


def changes_path(**inputs):
    result = good(**inputs)
    sys.path.clear()
    sys.modules.pop("oracles.verdict", None)
    return result


def sets_device_before(**inputs):
    torch.set_default_device("meta")
    return good(**inputs)


def patches_empty(**inputs):
    torch.empty = lambda *args, **kwargs: REAL_EMPTY(*args, **kwargs).fill_(7)
    return good(**inputs)


def breaks_empty(**inputs):
    result = good(**inputs)
    torch.empty = None
    return result


def breaks_monotonic(**inputs):
    time.monotonic = None
    return good(**inputs)


def sleeps_on_the_first_call(**inputs):
    if flagged():
        time.sleep(3600)
    return good(**inputs)


def spins_on_the_first_call(**inputs):
    while flagged() or os.environ.get("SPINS"):
        os.environ["SPINS"] = "yes"
    return good(**inputs)


def wrong_then_sleeps(**inputs):
    indices, offsets = good(**inputs)
    if offsets.numel() == 2 and not int(inputs["cu_seqlens_cpu"][0]) and inputs["chunk_size"] == 1 and flagged():
        time.sleep(3600)
    return indices, offsets + 1


def dies_when_strided(**inputs):
    if inputs["cu_seqlens"].stride(0) == 2:
        os._exit(7)
    return good(**inputs)


def hangs_when_strided(**inputs):
    if inputs["cu_seqlens"].stride(0) == 2:
        time.sleep(3600)
    return good(**inputs)


def kills_group(**inputs):
    os.killpg(0, signal.SIGTERM)
    time.sleep(3600)


def kills_itself(**inputs):
    os.kill(os.getpid(), signal.SIGKILL)


def kills_nursery(**inputs):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)


def kills_nursery_once(**inputs):
    if flagged():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)
    return good(**inputs)


def stops_itself(**inputs):
    os.kill(os.getpid(), signal.SIGSTOP)
    return good(**inputs)


def stops_nursery_once(**inputs):
    if flagged():
        os.kill(os.getppid(), signal.SIGSTOP)
    return good(**inputs)


def sets_alarm(**inputs):
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    time.sleep(1)
