;;;; Attempts, as interceptors of them see them. Interceptors of a channel go around a call, however
;;;; often it is tried (gRFC A6). Those of attempts are called before each attempt goes to its
;;;; server, the first, hedges and transparent retries, too: they may change its metadata, or have
;;;; it fail, which the policy of the call's method then judges as any failure of an attempt. What
;;;; they want to know of its end they ask for by ON-ATTEMPT-END.
;;;;
;;;; An attempt that finds no server is none: nobody is told of it. A transport has one place where
;;;; its attempts begin, which calls VIEW-ATTEMPT, and one where they are over, which calls
;;;; CLOSE-ATTEMPT. A channel without such interceptors makes no ATTEMPT.

(in-package #:clgrpc.calling)

(defstruct (attempt (:constructor make-attempt (call number kind peer headers)) (:copier nil))
  "One try of a client's call, for the interceptors of attempts."
  (call nil :type call :read-only t)    ; that it is one try of
  (number 0 :type index :read-only t)   ; how many attempts came before it
  (kind :first :type (member :first :retry :hedge :transparent) :read-only t) ; why it is made
  (peer nil :type (or null string) :read-only t) ; the server's address
  (headers '() :type list)              ; metadata to be sent, an alist
  (begun nil :type boolean)             ; they have been sent
  (status nil :type symbol)             ; that it ended with, once it has
  (message "" :type string)             ; the text of that
  (fields #() :type simple-vector)      ; the server's initial metadata, as the transport has it
  (trailer-fields #() :type simple-vector) ; likewise the trailing
  (functions '() :type list))           ; of ON-ATTEMPT-END, newest first

(declaim (sb-ext:freeze-type attempt))

(document-functions
  attempt-call "The call that ATTEMPT is one try of. Its values (CALL-VALUE) are for interceptors,
too. From any thread."
  attempt-number "How many attempts of its call came before ATTEMPT, as grpc-previous-rpc-attempts
tells the server: a transparent retry has the number of the attempt that it repeats. From any
thread."
  attempt-kind "Why ATTEMPT is made: :first, :retry or :hedge, as the policy of the method says, or
:transparent, since a server has not seen the attempt before it. From any thread."
  attempt-peer "The address of the server that ATTEMPT goes to, a string. From any thread."
  attempt-status "The status that ATTEMPT has ended with, a keyword, :cancelled if another attempt
has the call; nil while it runs. From any thread."
  attempt-message "The text of the status that ATTEMPT has ended with; empty while it runs. From any
thread.")

(defmethod print-object ((attempt attempt) stream)
  (print-unreadable-object (attempt stream :type t)
    (format stream "~D of ~A~@[ to ~A~] ~:[runs~;~:*~(~A~)~]" (1+ (attempt-number attempt))
            (call-path (attempt-call attempt))
            (attempt-peer attempt) (attempt-status attempt))))

(defun attempt-request-metadata (attempt)
  "The metadata that ATTEMPT sends, an alist, at first what its call's user gave. SETFable by an
interceptor, which MISUSE tells of an alist that cannot be sent, or once it is too late."
  (attempt-headers attempt))

(defun (setf attempt-request-metadata) (metadata attempt)
  (when (attempt-begun attempt) (misuse "~A has sent its metadata." attempt))
  (setf (attempt-headers attempt) (check-metadata metadata)))

(defun put-attempt-metadata (attempt metadata)
  "As (SETF ATTEMPT-REQUEST-METADATA), for an interceptor of ours, which may use names that belong
to gRPC."
  (setf (attempt-headers attempt) metadata))

(defun attempt-metadata (attempt)
  "The initial metadata that ATTEMPT, which has ended, got from its server, an alist; nil if no
answer had begun. From any thread."
  (let ((call (attempt-call attempt)))
    (operate metadata call (attempt-fields attempt))))

(defun attempt-trailers (attempt)
  "The trailing metadata that ATTEMPT, which has ended, got from its server, an alist. From any
thread."
  (let ((call (attempt-call attempt)))
    (operate metadata call (attempt-trailer-fields attempt))))

(defun on-attempt-end (attempt function)
  "Call FUNCTION without arguments once ATTEMPT has ended, however it does: ATTEMPT-STATUS,
ATTEMPT-METADATA and ATTEMPT-TRAILERS say what came of it. Several functions are called in the order
in which they were given, where attempts are intercepted: they must not wait. Return ATTEMPT. For
interceptors, before ATTEMPT goes to its server."
  (push function (attempt-functions attempt))
  attempt)

;;; Where attempts begin and are over

(defmacro guarding-attempt ((attempt) &body body)
  "Do BODY, functions of users, with ATTEMPT's call as the current call; an error in it goes to the
log."
  `(let ((*call* (attempt-call ,attempt)))
     (loop:guarding (:attempt-interceptor-error :method (call-path *call*))
       ,@body)))

(defun intercept-attempt (attempt interceptors)
  "Call INTERCEPTORS, functions, with ATTEMPT, which is about to go to its server. Return nil, or
the RPC-ERROR that it fails with: what one of them has signalled, or what stands for an error in
one. Where the transport begins attempts: the loop, or in process a thread."
  (block intercepting
    (guarding-attempt (attempt)
      (handler-bind ((rpc-error (lambda (error)
                                  (check-metadata (rpc-error-trailers error))
                                  (return-from intercepting error))))
        (dolist (interceptor interceptors) (funcall interceptor attempt)))
      (setf (attempt-begun attempt) t)
      (return-from intercepting nil))
    (verdict-error :interceptor-error '())))

(defun kind-of-attempt (call number retries)
  "Why the attempt of CALL that NUMBER others came before is made, as ATTEMPT-KIND has it. RETRIES
are those of CALL, or nil."
  (cond ((find number (failed-attempts call) :key (lambda (plist) (getf plist :number)))
         :transparent)
        ((zerop number) :first)
        ((retries-hedged-p retries) :hedge)
        (t :retry)))

(defun view-attempt (call number retries peer metadata interceptors)
  "Call those of INTERCEPTORS that are for its method for the attempt of CALL, with RETRIES or nil,
that NUMBER others came before. It goes to PEER with METADATA. Return what they know of it, nil if
there are none, and the RPC-ERROR that it fails with if they have it fail, else nil."
  (let ((own (interceptors-for interceptors (call-rpc-method call))))
    (if own
        (let ((view (make-attempt call number (kind-of-attempt call number retries) peer metadata)))
          (values view (intercept-attempt view own)))
        (values nil nil))))

(defun close-attempt (attempt status &key call (message "") (trailer-fields #()))
  "ATTEMPT is over with STATUS: with the text MESSAGE and the metadata TRAILER-FIELDS, in the form
of its transport; or if CALL is given, whose own attempt it was, with what CALL has got. Tell who
wanted to know. Where attempts are intercepted."
  (setf (attempt-begun attempt) t
        (attempt-message attempt) (if call (nth-value 1 (final-status call)) message)
        (attempt-fields attempt) (or (and call (call-fields call)) #())
        (attempt-trailer-fields attempt) (if call (trailer-fields call) trailer-fields)
        (attempt-status attempt) status)
  (dolist (function (reverse (attempt-functions attempt)))
    (guarding-attempt (attempt)
      (funcall function))))
