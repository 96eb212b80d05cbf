;;;; The metrics of a client, in addition to those of all channels: events of watches, leases,
;;;; tokens and locks. All clients with the same metrics count together.

(in-package #:clgrpc.etcd)

(defstruct (meter (:copier nil))
  "The instruments in one METRICS."
  (streams nil :read-only t)            ; a counter of the streams that watches have opened
  (changes nil :read-only t)            ; a counter of changes that watches have got
  (losses nil :read-only t)             ; a counter of leases that were lost
  (tokens nil :read-only t)             ; a counter of fetched tokens
  (waits nil :read-only t))             ; a histogram of how long locks and leaderships took

(declaim (sb-ext:freeze-type meter))

(defun new-meter (metrics)
  "A meter with the instruments of METRICS."
  (flet ((counter (name unit text)
           (metrics:make-counter metrics name :unit unit :text text)))
    (make-meter
     :streams (counter "etcd.client.watch.streams" "{stream}"
                       "Streams of watches that were opened; a client needs one, until it breaks.")
     :changes (counter "etcd.client.watch.changes" "{change}" "Changes that watches have reported.")
     :losses (counter "etcd.client.lease.losses" "{lease}"
                      "Leases that were kept alive and have ended, or may have.")
     :tokens (counter "etcd.client.tokens" "{token}"
                      "Tokens that were fetched because calls needed one.")
     :waits (metrics:make-histogram metrics "etcd.client.lock.wait" :unit "s"
                                    :text "The time to obtain a lock or a leadership."
                                    :bounds '(0.001 0.01 0.1 1 10 100 1000)))))

(defun meter-of (metrics)
  "The meter for METRICS, nil for nil."
  (metrics:ensure-instruments metrics 'meter #'new-meter))
