"""The compiled part: from UTF-8 bytes and flat tables to ids.

`memory` is the only file that knows about addresses and vectors, `layout` names the words that the kernels
are given, `split_*` cut text into words, `words` finds a word's ids, `merge` merges those that have to be
merged, `added` finds added tokens, and `encode` is the entry. Everything is int64.
"""
