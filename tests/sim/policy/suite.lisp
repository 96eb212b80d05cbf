;;;; That no scenario of the public suite is missing.

(in-package #:clgrpc.tests.policy)

(defparameter *public-names*
  '(backoff-grows call-waits-while-connecting cancel-reaches-server circuit-frees-at-the-end
    circuit-limit connection-reset-under-calls deadline-exceeded deadline-spans-attempts
    dns-authority dns-no-txt-uses-default dns-reresolve-on-failure dns-txt-applied
    dns-txt-choice-language dns-txt-invalid-without-default dns-txt-many-strings
    dns-unknown-name dns-update-loses-no-call dns-wait-for-ready-until-it-resolves
    goaway-graceful he-blackhole health-not-serving-avoided health-turns
    health-unimplemented-is-healthy hedge-all-fail hedge-fatal-ends-all
    hedge-nonfatal-sends-next-now hedge-pushback-stop hedge-second-wins hedge-zero-delay
    idle-timeout invalid-retry-policy invalid-throttling keepalive-dead-peer
    keepalive-not-without-calls lr-prefers-idle od-failure-percentage od-minimum-hosts
    od-returns od-without-algorithm pf-failover pf-first-address pf-idle-after-loss pf-shuffle
    pf-sticky-transient-failure retry-capped-at-five retry-client-stream-replays
    retry-committed-by-headers retry-exhausts-max-attempts retry-goes-to-another-backend
    retry-not-for-other-codes retry-pushback-delay retry-pushback-negative retry-succeeds-second
    ring-affinity ring-connects-on-demand ring-random-without-header rr-even
    rr-reconnects-by-itself rr-skips-dead sc-first-known-policy sc-longest-name-wins
    sc-max-response sc-method-timeout sc-unknown-fields-ignored sc-wait-for-ready
    scale-no-further-than-set scale-up state-idle-until-used streams-limit-kept
    streams-limit-raised subset-invalid subset-of-five throttle-arithmetic throttle-recovers
    transparent-refused-stream wait-for-ready wrr-blackout wrr-out-of-band wrr-per-call)
  "The names of the public suite.")

(test every-public-scenario-is-a-test
  (let ((tests (mapcar #'support:test-name (support:suite-tests (get-test :clgrpc.policy)))))
    (is (= 79 (length *public-names*)))
    (is (equal '() (set-difference *public-names* tests)))))
