;;;; Tests of clgrpc.loop, one file per source file. Everything happens on loopback; nothing sleeps
;;;; to wait. The tests of clgrpc.async use support.lisp and poller.lisp, too.

(defpackage #:clgrpc.tests.loop
  (:use #:cl #:clgrpc.base #:clgrpc.option #:clgrpc.loop #:clgrpc.tests.form)
  (:shadow #:await)
  (:import-from #:clgrpc.loop #:define-flags #:take #:overtake #:lend #:resume #:hand-over #:retire
                #:connection-output-pending-p
                #:make-inbox #:push-inbox #:drain-inbox #:inbox-empty-p #:doze-inbox #:rouse-inbox
                #:inbox-asleep-p #:confirm-wake #:close-inbox #:no-waker-left-p #:become-waker)
  (:import-from #:clgrpc.tests.support #:eventually)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:os #:clgrpc.os) (#:support #:clgrpc.tests.support))
  (:export #:*patience-seconds* #:await #:on-loop #:settle #:threads-left #:with-loops
           #:check-gone #:shiftable-clock #:mishap #:client-credentials
           #:server-credentials #:listen-with #:echo #:with-clients #:client-stream #:client-send
           #:client-receive #:client-ended-p #:close-client #:pattern #:check-over-poll)
  ;; for other tests
  (:export #:area-clean-p #:carry #:close-end #:closed-port #:end-arrived #:end-byte-channel
           #:end-fault #:end-over #:end-room #:end-sent #:end-tls #:established-p #:exchanged-p
           #:limit-version #:open-end #:read-end #:shake-ends #:write-end))

(in-package #:clgrpc.tests.loop)

(def-suite :clgrpc.loop :description "The event loop, connections, listeners, reserve threads.")
