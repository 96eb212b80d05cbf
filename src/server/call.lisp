;;;; A call as the server has it, and what is noted of it in time.

(in-package #:clgrpc.server)

(defstruct (server-call (:include wire-call) (:constructor make-server-call) (:copier nil))
  (route nil :type (or null server-route))
  (request nil)                         ; a message, or octets not yet decoded
  (accepted '() :type list)             ; the encodings that the client can read
  ;; once the handler is to run: true, the ticket for a thread, or the place among those that wait
  ;; for room; the time from when it does
  (started nil :type (or boolean cons ring nanoseconds))
  ;; whether the handler, which began on the loop and lost it, is charged to its link
  (late nil :type (member nil :charged :returned)))

(declaim (sb-ext:freeze-type server-call))

(defmethod wire:call-began-ns ((call server-call))
  (let ((started (server-call-started call)))
    (and (integerp started) started)))

(define-hot (note-time :inline t) ((call server-call)) null
  "Have what is noted of CALL from now on, in this turn, be true to the moment, not to the turn; but
a reading of the clock is too much for a unary call of which nobody is told. On the loop."
  (when (or (rpc:call-parts call)
            (tracing-p :call)
            (let ((route (server-call-route call)))
              (and route (route-interceptors route)))
            (let ((method (call-rpc-method call)))
              (and method (not (eq :unary (rpc-method-kind (the rpc-method method)))))))
    (loop:note-time (wire-call-loop call)))
  nil)
