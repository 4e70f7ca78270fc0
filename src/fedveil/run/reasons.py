"""What a site's refusal means, in words: a guard says a code and no more."""

from typing import Final

REASONS: Final = {
    "not-accepted": "its operator has not accepted this plan; start the guard there with --accept and the plan's hash",
    "over-cap": "the plan costs more than is left under the site's cap",
    "not-private": "the plan promises nothing, and the site runs no trials",
    "other-data": "the plan was made for data of another shape",
    "other-plan": "it has agreed to another plan for this run",
    "no-encryption": "it cannot encrypt with this key; is fedveil[he] installed there?",
    "not-the-maker": "it knows sites, in its folder peers, that are not of this deployment",
    "unknown-peers": "it has no public keys of the other sites; put them into its folder peers",
    "bad-signature": "the public keys in its folder peers are not those of the other sites",
    "wrong-party": "the public keys in its folder peers are not those of the other sites",
    "not-for-me": "another site has an old public key of it in its folder peers",
    "other-key": "it has another key for the sums of this run",
    "other-roster": "the list of clients' keys is not that of this run's clients",
    "cannot-charge": "its ledger does not take the charge; the guard's own log says why",
    "other-deal": "its records are not dealt into rounds as the plan says",
    "already-run": "its operator has accepted this plan for one run, and there was one; a cap there would allow more",
    "lost-memory": "it has charged this run and lost what it remembered of it; begin another run",
    "lost-key": "it has lost the key of this run's noise; begin another run",
    "not-charged": "its ledger has no charge for this run; begin another run",
    "changed-data": "its data are not those that were charged; start the guard there with the data it began with",
    "other-code": "the plan names a function that its operator has not named; start the guard there with --module",
    "finished": "it has recorded the end of this run",
}
