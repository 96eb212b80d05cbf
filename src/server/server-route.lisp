;;;; Routes of a server (serving/route.lisp), with notes on the durations of their handlers. The
;;;; HPACK entry of a path remembers its route, so a repeated path costs no look-up. An unknown path
;;;; is remembered with the epoch of the server's table, which grows whenever routes are added.

(in-package #:clgrpc.server)

(defstruct (server-route (:include route) (:conc-name route-) (:copier nil))
  "The route of a path of a server."
  (execution :auto :type (member :inline :blocking :auto)) ; where the route's handler runs
  ;; with :auto: its handler has overstayed, or has waited while others were due
  (blocks nil :type (member nil t :waits))
  (quick 0 :type fixnum)                ; how many calls in a row have been quick since
  (late 0 :type sb-ext:word)            ; how many of its handlers that overstayed still run; atomic
  (coded '() :type list))               ; an alist from codecs to ROUTE-IN-CODEC of this route

(declaim (sb-ext:freeze-type server-route))

(define-printer (route server-route)
  "~:[unknown~;~:*~A~] ~(~A~)~:[~; (blocks)~]" (route-method route) (route-execution route)
  (route-blocks route))

;;; Routes of methods whose messages are in a codec

(defun coding-interceptor (method)
  "An interceptor that encodes the answer of a handler of METHOD, which has a codec, as the raw
message that is sent."
  (let ((type (method:rpc-method-response-type method))
        (answers (member (rpc-method-kind method) '(:unary :client-streaming))))
    (lambda (call request next)
      (let ((value (funcall next request)))
        (if (and answers (not (eq value call)))
            (rpc:check-message method type value)
            value)))))

(defun code-answers (route)
  "Add the interceptor that encodes answers to ROUTE, which was just made, if its method has a
codec. Return ROUTE."
  (let ((method (route-method route)))
    (when (and method (method:rpc-method-codec method))
      (push (coding-interceptor method) (route-interceptors route)))
    route))

(defun execution-of (execution function-name)
  "The execution of the method named FUNCTION-NAME under EXECUTION, the argument of START-SERVER:
:INLINE, :BLOCKING or :AUTO."
  (let ((chosen (if (listp execution)
                    (or (cdr (assoc function-name execution)) :auto)
                    execution)))
    (unless (member chosen '(:inline :blocking :auto))
      (misuse "~S is not valid for :execution: give :inline, :blocking, :auto, or an alist from ~
               methods to these."
              chosen))
    ;; no thread can take over the loop of a simulated world
    (if (and (eq :auto chosen) (loop:simulated-p)) :blocking chosen)))

(defun route-maker (execution)
  "The function for SERVING:MAKE-ROUTES that makes the routes of a server whose handlers run with
EXECUTION, the argument of START-SERVER."
  (lambda (&rest slots &key method &allow-other-keys)
    (let ((name (and method (method:rpc-method-function-name method))))
      (code-answers (apply #'make-server-route :execution (execution-of execution name) slots)))))

(defun route-in-codec (route codec)
  (or (cdr (assoc codec (route-coded route)))
      (let ((coded (copy-structure route)))
        (setf (route-method coded) (method:method-in-codec (route-method route) codec)
              (route-coded coded) '()
              (route-blocks coded) nil
              (route-late coded) 0)
        (code-answers coded)
        (push (cons codec coded) (route-coded route))
        coded)))

;;; Which methods block. The slots for quick and late handlers are hints, which several threads set
;;; without a lock.

(defconstant +quick-ns+ 100000
  "The time, in nanoseconds, within which a handler must return to count as quick.")
(defconstant +quick-calls+ 64
  "The number of quick calls in a row after which a method is assumed not to block.")

(define-hot (runs-inline-p :inline t) ((route server-route) (alone boolean)) boolean
  "True if the handler of ROUTE must run on the loop. ALONE is true if the handler's call is the
only one of the loop."
  (case (route-execution route)
    (:inline t)
    (:auto (case (route-blocks route)
             ((nil) t)
             (:waits alone)))))

(defun note-waiting (route)
  "Note that a handler of ROUTE waits on the loop while other user code is due. Later handlers of
ROUTE start on reserve threads, unless their call is the only one of the loop."
  (when (and (eq :auto (route-execution route)) (null (route-blocks route)))
    (setf (route-blocks route) :waits)))

(defun note-overstay (route)
  "Note that a handler of ROUTE has lost the loop, or handed it over, and still runs. Later handlers
of ROUTE start on reserve threads, of which each connection has its quota. Until this handler has
returned no handler of ROUTE starts on the loop, since each handler that takes too long there
occupies a thread."
  (sb-ext:atomic-incf (route-late route))
  (trace-event :loop :method-blocks :method (method:rpc-method-path (route-method route)))
  (setf (route-quick route) 0)
  (when (and (eq :auto (route-execution route)) (null (route-blocks route)))
    (setf (route-blocks route) t)))

(defun late-handler-ended (route)
  "Note that a handler of ROUTE has returned. NOTE-OVERSTAY was called for that handler, or is about
to be called."
  (sb-ext:atomic-decf (route-late route))
  nil)

(define-hot note-duration ((route server-route) (duration-ns (unsigned-byte 62))) null
  "Note that a handler of ROUTE took DURATION-NS on a reserve thread."
  (cond ((> duration-ns +quick-ns+) (setf (route-quick route) 0))
        ((and (>= (incf (route-quick route)) +quick-calls+)
              (zerop (route-late route)))
         (setf (route-quick route) 0
               (route-blocks route) nil)))
  nil)

;;; Which methods give long answers, see reply-room.lisp

(defun promise-answer (route)
  "Reserve room in the heap for another answer of ROUTE, whose answers are long. Return the number
of octets reserved; nil if the heap has no room."
  (let* ((long (* 2 (route-long-octets route)))
         (method (route-method route)))
    (cond ((not (promise-octets long)) nil)
          ((member (rpc-method-kind method) '(:unary :client-streaming)) long)
          ;; a handler that blocks may run for any time
          (t (settle-octets long) 0))))

(defun check-methods (execution interceptors table)
  "Signal MISUSE if EXECUTION or INTERCEPTORS names a method that is not in TABLE."
  (let ((methods (loop for route being the hash-values of (route-table-routes table)
                       collect (route-method route))))
    (loop for (name) in (if (listp execution) execution '())
          unless (find name methods :key #'method:rpc-method-function-name)
            do (misuse ":execution names ~S, which is not a method of the services." name))
    (loop for item in interceptors
          unless (or (atom item)
                     (some (lambda (method) (rpc:interceptors-for (list item) method)) methods))
            do (misuse ":interceptors names ~S, which is neither a service of this server nor a ~
                        method of one."
                       (first item)))))

(define-hot route-of ((table route-table) (field hpack:field)) server-route
  (let ((memo (hpack:field-memo field)))
    (if (and (server-route-p memo)
             (route-current-p memo table))
        memo
        (setf (hpack:field-memo field) (find-route table field)))))

(defun find-route (table field)
  "The route of TABLE for the path FIELD; a route without a method if no method has that path."
  (or (gethash (hpack:field-value-string field) (route-table-routes table))
      (find-unknown-route table (hpack:field-value-string field))))
