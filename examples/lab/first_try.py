"""words.py with a ready-made counter. Faster, and not the same: ties come in the order of the text."""

from collections import Counter

words = [f"word{i * i * 7919 % 5003}" for i in range(5003)] * 100

for word, count in Counter(words).most_common(100):
    print(word, count)
