"""Reports: what one run or many have come to, as numbers with intervals and as one page that needs nothing else."""
