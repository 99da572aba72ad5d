"""Masked sums: sites add up vectors that none of them may see individually (Bonawitz et al. 2017; Bell et al. 2020).

No module here sends or stores anything: messages are returned to the caller, and the ledger is passed in.

    agreement        who takes part, and on which terms (`core.sum_terms`)
    mask_graph       which members mask with one another: all of them, or a random graph above 64 members
    graph_seed       the common seed of that graph
    masking          vectors modulo 2^m, and the streams that hide them
    sharing          secrets divided so that a threshold of members restores them
    messages         what members and the summing site send, with signatures
    verification     what is checked before a message is believed
    member_secrets   keys and seed of one member in one attempt, in memory only
    member_site      what a member needs from its site
    attempt          one member in one attempt
    summing          the site that collects, and opens the sum
    two_servers      distances between vectors that nobody sees: another protocol, with the streams of this one
    in_process       all members of a sum in one process, for simulations and tests

An attempt has five steps. Members send to the summing site, which answers all of them:

    1  keys        fresh public keys, signed                   →  the keys of all
    2  shares      encrypted shares of the member's secrets    →  the shares that are addressed to each
    3  vector      after the charge is written                 →  the list L of members whose vectors arrived
    4  signature   one list per attempt, recorded first        →  at least T signatures on the same list
    5  opening     for members in L the share of the self-mask, for others the share of the key  →  the sum

What it relies on, beyond the cryptography: at most `colluding` members pool what they see or depart from the protocol, the
summing site among them. A member that departs from it can spoil a sum, and put any vector into it; as the summing site it can
state a wrong one. It learns only sums of at least n − d members.
"""
