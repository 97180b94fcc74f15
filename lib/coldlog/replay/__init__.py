"""replay: in which order do the records of several partitions come, and how far is each?"""
