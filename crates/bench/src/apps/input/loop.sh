# Four commands in each of $rounds rounds, which are set before.
round=0
while test $round -lt $rounds; do
    echo "a line of text" >first-$round
    cat first-$round >second-$round
    cp second-$round third-$round
    mv third-$round fourth-$round
    rm first-$round
    round=$((round + 1))
done
