"""The program of the walk through docs/lab.md: the most frequent words of a text, ties in the order of the alphabet."""

words = [f"word{i * i * 7919 % 5003}" for i in range(5003)] * 100

counts = {}
for word in words:
    if word not in counts:
        counts[word] = 0
    counts[word] = counts[word] + 1

for word in sorted(counts, key=lambda w: (-counts[w], w))[:100]:
    print(word, counts[word])
