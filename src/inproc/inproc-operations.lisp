;;;; The operations of the two ends of the transport: see rpc/transport.lisp.

(in-package #:clgrpc.inproc)

;;; What handlers do

(defun inproc-send-metadata (call metadata)
  "The operation SEND-METADATA of a handler."
  (let ((client (call-pair-client (call-call-pair call))))
    (when (call-fields client) (misuse "The headers of ~A were sent before." call))
    (setf (call-fields client) (metadata-entries metadata))
    (notify client)
    (rpc:schedule-callbacks client)))

(defun inproc-reply (call message)
  "The operation REPLY."
  (answer (call-call-pair call) message)
  t)

(defun inproc-finish (call status message details trailers)
  "The operation FINISH."
  (end-as (call-call-pair call) status message details trailers))

(defun inproc-server (call)
  "The operation SERVER."
  (let ((callee (inproc-core-callee (call-inproc-core call))))
    (and callee (callee-server callee))))

(defun inproc-abort-by-server (call status text ended-by)
  "The operation ABORT of a handler."
  (declare (ignore ended-by))
  (end-by-server (call-call-pair call) status text))

;;; What clients do

(defun inproc-abort-by-client (call status text ended-by)
  "The operation ABORT of a client."
  (declare (ignore ended-by))
  (unless (call-status call) (end-by-client (call-call-pair call) status text)))

(defun inproc-await-metadata (call)
  "The operation AWAIT-METADATA of a client."
  (let ((call-pair (call-call-pair call)))
    (when (eq :waiting (call-pair-phase call-pair)) (begin-soon call-pair))
    (rpc:wait-for-call call #'call-fields)))

;;; What both do

(defun run-here (call function)
  "The operation POST."
  (declare (ignore call))
  (funcall (the function function))
  t)

;;; Futures

(defun future-p (call)
  "The operation FUTURE-P."
  (let ((call-pair (inproc-call-call-pair call)))
    (and call-pair (call-pair-unattended call-pair))))

(defun reply-of-future (call)
  "The operation REPLY-OF-FUTURE."
  (call-pair-reply (call-call-pair call)))

(defun reserve-of-future (call)
  "The operation RESERVE-OF-FUTURE."
  (client-reserve (call-inproc-core call)))

;;; The two ends

(rpc:define-transport-end **shared-operations** (nil)
  :look #'look :after #'run-after :post #'run-here :schedule #'schedule :room #'sending-room
  :taken #'taken :observer #'inproc-observer :traffic #'traffic :elapsed-ns #'elapsed-ns
  :particulars #'inproc-particulars :now #'call-now
  :peer #'inproc-core-peer :stage #'call-pair-stage
  :other-end #'other-end :metadata #'entries-metadata
  :new-callbacks #'new-inproc-callbacks)

(rpc:define-transport-end **client-operations** (:client :like **shared-operations**)
  :send #'inproc-client-send :close-send #'inproc-close-send :receive #'inproc-client-receive
  :each #'inproc-each :await-metadata #'inproc-await-metadata :abort #'inproc-abort-by-client
  :drive #'inproc-drive :park #'inproc-client-park
  :future-p #'future-p :reply-of-future #'reply-of-future :reserve-of-future #'reserve-of-future)

(rpc:define-transport-end **server-operations** (:server :like **shared-operations**)
  :send #'inproc-server-send :send-metadata #'inproc-send-metadata :receive #'inproc-server-receive
  :reply #'inproc-reply :finish #'inproc-finish :abort #'inproc-abort-by-server
  :drive #'no-drive :park #'inproc-park :server #'inproc-server)
