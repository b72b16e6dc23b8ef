"""Verifies Ed25519 signatures (RFC 8032) with the libcrypto that the interpreter itself is linked with.

By ctypes: importing `cryptography` would take more memory than all the rest of the agent.
"""

import _hashlib
import ctypes
from collections.abc import Iterator

KEY_BYTES = 32
SIGNATURE_BYTES = 64
_NID_ED25519 = 1087  # openssl/obj_mac.h
# For an interpreter of which `_hashlib` is a part and no file.
_LIBRARIES = ("libcrypto.so.3", "libcrypto.so.1.1")
# RFC 8032 section 7.1, test 2.
_KNOWN_KEY = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
_KNOWN_MESSAGE = b"\x72"
_KNOWN_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)


class Ed25519Unavailable(Exception):
    """No libcrypto that verifies Ed25519 signatures can be loaded."""


class Ed25519:
    """A loaded libcrypto that has shown on a known signature that it can do this; in FIPS mode some cannot.

    Raises Ed25519Unavailable when there is none.
    """

    def __init__(self) -> None:
        for library in _loaded_libraries():
            self._declare(library)
            if self.verify(_KNOWN_KEY, _KNOWN_SIGNATURE, _KNOWN_MESSAGE):
                return
        raise Ed25519Unavailable("no libcrypto with Ed25519 (OpenSSL 1.1.1 or newer) beside this Python")

    def _declare(self, library: ctypes.CDLL) -> None:
        pointer, size, data = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        self._new_key = library.EVP_PKEY_new_raw_public_key
        self._new_key.restype, self._new_key.argtypes = pointer, (ctypes.c_int, pointer, data, size)
        self._free_key = library.EVP_PKEY_free
        self._free_key.restype, self._free_key.argtypes = None, (pointer,)
        self._new_context = library.EVP_MD_CTX_new
        self._new_context.restype, self._new_context.argtypes = pointer, ()
        self._free_context = library.EVP_MD_CTX_free
        self._free_context.restype, self._free_context.argtypes = None, (pointer,)
        self._start = library.EVP_DigestVerifyInit
        self._start.restype, self._start.argtypes = ctypes.c_int, (pointer,) * 5
        self._verify = library.EVP_DigestVerify
        self._verify.restype, self._verify.argtypes = ctypes.c_int, (pointer, data, size, data, size)
        self._clear_errors = library.ERR_clear_error
        self._clear_errors.restype, self._clear_errors.argtypes = None, ()

    def verify(self, public_key: bytes, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is that of `message` by the holder of the raw `public_key` of KEY_BYTES."""
        if len(signature) != SIGNATURE_BYTES or len(public_key) != KEY_BYTES:
            return False
        key = self._new_key(_NID_ED25519, None, public_key, KEY_BYTES)
        context = self._new_context()
        try:
            # Each answers 1 for yes; 0 and negative numbers are the ways to say no, EVP_DigestVerify(3).
            return (
                key is not None
                and context is not None
                and self._start(context, None, None, None, key) == 1
                and self._verify(context, signature, len(signature), message, len(message)) == 1
            )
        finally:
            self._free_context(context)
            self._free_key(key)
            # Otherwise a refusal stays in the thread's queue, for hashlib to find.
            self._clear_errors()


def _loaded_libraries() -> Iterator[ctypes.CDLL]:
    """Those that know the call. A module's file gives access to the libraries that it is linked with."""
    for name in (getattr(_hashlib, "__file__", None), *_LIBRARIES):
        if name is None:
            continue
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue  # not there: the next may be
        if hasattr(library, "EVP_DigestVerify"):
            yield library
