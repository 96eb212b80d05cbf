;;;; The consequences of a failed export (OTLP specification, "OTLP/gRPC Response" and "OTLP/gRPC
;;;; Throttling"): some statuses mean that the same request may succeed later. The collector gives
;;;; the delay in RetryInfo; otherwise the delay grows with each failure. The exporter keeps the
;;;; data to send again itself, instead of using the channel's retries: those do not know RetryInfo,
;;;; and would send outdated metrics.

(in-package #:clgrpc.otlp)

(defconstant +first-delay-seconds+ 1
  "How long to wait after the first failure.")
(defconstant +longest-delay-seconds+ 30
  "The longest wait after many failures in a row.")
(defconstant +shortest-told-seconds+ 1/10
  "The shortest delay that a collector can ask for. Without a minimum pause we would send as fast as
the collector refuses.")
(defconstant +longest-told-seconds+ 300
  "How long a collector can make us wait.")

(defconstant +accepted-octets+ 1048576
  "The maximum number of octets of a request that is not treated as too long; collectors accept 4
MiB by default.")

(defparameter *retryable* '(:cancelled :deadline-exceeded :aborted :out-of-range :unavailable
                            :data-loss)
  "The statuses after which a client of OTLP must send again.")

(defun told-delay (error)
  "The seconds that the collector, in ERROR, asks us to wait; 0 if it does not give a duration; nil
if it does not ask us to wait."
  (when-let ((info (status:rpc-error-detail error 'google.rpc:retry-info)))
    (if-let ((delay (google.rpc:retry-info-retry-delay info)))
      (min +longest-told-seconds+ (max 0 (protobuf:duration-in-seconds delay)))
      0)))

(defun retryable-p (error)
  "True if a request that has failed with ERROR, an RPC-ERROR, should be sent again."
  (let ((status (status:rpc-error-status error)))
    (or (and (member status *retryable*) t)
        ;; this status is retried only if the collector asks us to wait
        (and (eq :resource-exhausted status)
             (told-delay error)
             t))))

;; Without RetryInfo :resource-exhausted may mean that a request is longer than the collector
;; accepts, or than our own channel sends. After a short request it means that the collector has no
;; room for anything, and more requests would not help.
(defun length-refused-p (error)
  "True if ERROR may mean that the request was too long."
  (and (eq :resource-exhausted (status:rpc-error-status error))
       (null (told-delay error))))

(defun own-delay (failures random-state)
  "The seconds to wait after FAILURES, 1 or more, in a row: a random part, half or more, of a time
that doubles with each failure."
  (let ((longest (min +longest-delay-seconds+
                      (* +first-delay-seconds+ (expt 2 (min 10 (1- failures)))))))
    (* longest (+ 0.5d0 (random 0.5d0 random-state)))))

(defun delay-after (error failures random-state)
  "The seconds to wait after ERROR, with which the last of FAILURES attempts in a row failed."
  (let ((told (told-delay error)))
    (if (and told (plusp told))
        (max +shortest-told-seconds+ told)
        (own-delay failures random-state))))
