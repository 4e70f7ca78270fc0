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
    "no-holder": "it has no public key of the key holder; put it at key-holder.pub beside its own key",
    "not-the-holders": "the key of sums is not signed by the key holder that it knows by its file key-holder.pub",
    "no-third-party": "the plan does not give the key of sums to a third party",
    "no-consent": "most sites have not consented to this sum; are the public keys in its folder peers the right ones?",
    "spent-round": "it has agreed to another sum of this round, and opens no second one",
    "no-sum": "what it was given is no sum of this round",
    "no-key": "the run's key is not there any more",
    "other-roster": "the list of clients' keys is not that of this run's clients",
    "finished": "it has recorded the end of this run",
}
