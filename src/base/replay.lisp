;;;; The requests that a client's call keeps until its response begins, so that the call can be
;;;; retried (gRFC A6). The call has a budget of octets, and all calls of its channel share another.
;;;; The transport chooses the form of the kept messages; here they are counted.

(in-package #:clgrpc.base)

(defstruct (octet-budget (:copier nil))
  "The number of octets of requests that all calls of a channel keep together."
  (held 0 :type sb-ext:word))           ; octets that are kept; atomic

(declaim (sb-ext:freeze-type octet-budget))

(defstruct (replay (:constructor make-replay
                    (octet-budget limit &optional (room most-positive-fixnum)))
                   (:copier nil))
  "The messages that a call has sent before its first answer."
  (octet-budget nil :type octet-budget) ; the channel's budget, charged with OCTETS
  (limit 0 :type index)                 ; how many octets may be kept
  (room 0 :type fixnum)                 ; how many more messages may be kept
  (messages '() :type list)             ; messages in the form of the transport, newest first
  (octets 0 :type index))               ; the length of the kept requests

(declaim (sb-ext:freeze-type replay))

(document-functions
  make-octet-budget "Return an octet budget that is not charged yet."
  octet-budget-held "The number of octets that are charged to an octet budget. It is changed
  atomically, from any thread."
  make-replay "(OCTET-BUDGET LIMIT &optional ROOM): return a replay without messages, which may keep
at most LIMIT octets and ROOM messages; its octets are charged to OCTET-BUDGET."
  replay-messages "The messages that a replay keeps, newest first.")

(define-printer (replay replay)
  "~D messages, ~D octets" (length (replay-messages replay)) (replay-octets replay))

(defun keep-message (replay message size total)
  "Keep MESSAGE, of SIZE octets, in REPLAY and return true; return false if the call's budget, or
the channel's budget of TOTAL octets, has no room for it. Only one thread at a time may call this."
  (let ((octet-budget (replay-octet-budget replay)))
    (and (plusp (replay-room replay))
         (<= (+ size (replay-octets replay)) (replay-limit replay))
         (<= (+ size (octet-budget-held octet-budget)) total)
         (progn
           (sb-ext:atomic-incf (octet-budget-held octet-budget) size)
           (incf (replay-octets replay) size)
           (decf (replay-room replay))
           (push message (replay-messages replay))
           t))))

(defun release-replay (replay)
  "Drop the requests that REPLAY keeps, and return their octets to the budget."
  (sb-ext:atomic-decf (octet-budget-held (replay-octet-budget replay))
                      (shiftf (replay-octets replay) 0))
  (setf (replay-messages replay) '()))
