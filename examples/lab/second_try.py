"""words.py with a ready-made counter, and ties in the order of the alphabet as before."""

from collections import Counter

words = [f"word{i * i * 7919 % 5003}" for i in range(5003)] * 100

counts = Counter(words)
for word in sorted(counts, key=lambda w: (-counts[w], w))[:100]:
    print(word, counts[word])
