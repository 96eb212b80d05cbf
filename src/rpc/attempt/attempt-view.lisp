;;;; Attempts as interceptors of attempts see them. A channel's interceptors are called around a
;;;; whole call, with all its attempts (gRFC A6). Interceptors of attempts are called before each
;;;; attempt is sent to its server, including the first, hedges and transparent retries. They may
;;;; change the attempt's metadata or make the attempt fail; the policy of the call's method treats
;;;; this like any failure of an attempt. ON-ATTEMPT-END calls a function when an attempt ends.
;;;;
;;;; An attempt that finds no server is not passed to interceptors. A transport calls VIEW-ATTEMPT
;;;; at the single place where its attempts begin, and CLOSE-ATTEMPT at the single place where they
;;;; end. A channel without interceptors of attempts makes no ATTEMPT.

(in-package #:clgrpc.attempt)

(defstruct (attempt (:constructor make-attempt (call number kind peer headers)) (:copier nil))
  "One attempt of a client's call, for the interceptors of attempts."
  (call nil :type call :read-only t)    ; the call of which this is an attempt
  (number 0 :type index :read-only t)   ; the number of earlier attempts
  (kind :first :type attempt-kind :read-only t) ; why the attempt is made
  (peer nil :type (or null string) :read-only t) ; the server's address
  (headers '() :type list)              ; the metadata to send, an alist
  (begun nil :type boolean)             ; the metadata have been sent
  (status nil :type symbol)             ; the status of the attempt, once it has ended
  (message "" :type string)             ; the text of STATUS
  (fields #() :type simple-vector)      ; the server's initial metadata, in the transport's form
  (trailer-fields #() :type simple-vector) ; likewise the trailing
  (functions '() :type list))           ; functions of ON-ATTEMPT-END, newest first

(declaim (sb-ext:freeze-type attempt))

(document-functions
  attempt-call "The call of which ATTEMPT is an attempt. Interceptors may also use its values
(CALL-VALUE). From any thread."
  attempt-number "The number of earlier attempts of ATTEMPT's call, as in
grpc-previous-rpc-attempts; a transparent retry has the number of the attempt that it repeats. From
any thread."
  attempt-kind "The reason for ATTEMPT: :first; :retry or :hedge, by the policy of the method; or
:transparent, because the server did not see the previous attempt. From any thread."
  attempt-peer "The address of ATTEMPT's server, a string. From any thread."
  attempt-status "The status with which ATTEMPT has ended, a keyword; :cancelled if the call
continued with another attempt; nil while ATTEMPT runs. From any thread."
  attempt-message "The text of the status with which ATTEMPT has ended; empty while ATTEMPT runs.
From any thread.")

(define-printer (attempt attempt)
  "~D of ~A~@[ to ~A~] ~:[runs~;~:*~(~A~)~]" (1+ (attempt-number attempt))
  (call-path (attempt-call attempt)) (attempt-peer attempt) (attempt-status attempt))

(defun attempt-request-metadata (attempt)
  "The metadata that ATTEMPT sends, an alist; at first the metadata given by the call's user.
Interceptors may set it by SETF, which signals MISUSE for an alist that cannot be sent, or if the
metadata were sent already. Call it from the interceptor's thread."
  (attempt-headers attempt))

(defun (setf attempt-request-metadata) (metadata attempt)
  (when (attempt-begun attempt) (misuse "~A has sent its metadata." attempt))
  (setf (attempt-headers attempt) (check-metadata metadata)))

(defun put-attempt-metadata (attempt metadata)
  "As (SETF ATTEMPT-REQUEST-METADATA), for an interceptor of the library, which may use names
reserved for gRPC."
  (setf (attempt-headers attempt) metadata))

(defun attempt-metadata (attempt)
  "The initial metadata that ATTEMPT, which has ended, received from its server, an alist; nil if no
answer had begun. From any thread."
  (let ((call (attempt-call attempt)))
    (operate metadata call (attempt-fields attempt))))

(defun attempt-trailers (attempt)
  "The trailing metadata that ATTEMPT, which has ended, received from its server, an alist. From any
thread."
  (let ((call (attempt-call attempt)))
    (operate metadata call (attempt-trailer-fields attempt))))

(defun on-attempt-end (attempt function)
  "Call FUNCTION without arguments once ATTEMPT has ended, with any status. FUNCTION finds the
result in ATTEMPT-STATUS, ATTEMPT-METADATA and ATTEMPT-TRAILERS. Several functions are called in the
order in which they were given, on the thread that intercepts attempts; they must not wait. Return
ATTEMPT. Only interceptors may call this, before ATTEMPT is sent to its server."
  (push function (attempt-functions attempt))
  attempt)

;;; Attempts within the image are calls of their own

(defun attempt-of (call)
  "The call of which CALL is an attempt within the image, or CALL itself. A transport stores that
call on each attempt, as the value of the key ATTEMPT-OF."
  (values (call-value call 'attempt-of call)))

;;; The beginning and end of attempts

(defgeneric observer-interceptors (source)
  (:documentation "The interceptors of attempts, a list of functions, that SOURCE, the :observer of
a channel, needs.")
  (:method (source)
    (declare (ignore source))
    '())
  (:method ((source cons)) (mapcan (lambda (source) (copy-list (observer-interceptors source)))
                                   source)))

(defmacro guarding-attempt ((attempt) &body body)
  "Evaluate BODY, which calls functions of users, with ATTEMPT's call as the current call. An error
in BODY is logged."
  `(let ((*call* (attempt-call ,attempt)))
     (loop:guarding (:attempt-interceptor-error :method (call-path *call*))
       ,@body)))

(defun intercept-attempt (attempt interceptors)
  "Call INTERCEPTORS, functions, with ATTEMPT, which is about to be sent to its server. Return nil,
or the RPC-ERROR with which ATTEMPT fails: the RPC-ERROR that an interceptor has signalled, or a new
one if an interceptor has signalled another error. Called on the thread where the transport begins
attempts: the loop's or, in process, the caller's."
  (block intercepting
    (guarding-attempt (attempt)
      (handler-bind ((rpc-error (lambda (error)
                                  (check-metadata (rpc-error-trailers error))
                                  (return-from intercepting error))))
        (dolist (interceptor interceptors) (funcall interceptor attempt)))
      (setf (attempt-begun attempt) t)
      (return-from intercepting nil))
    (verdict-error :interceptor-error '())))

(defun failed-p (call number)
  "True if an attempt of CALL that had NUMBER attempts before it has failed."
  (and (find number (failed-attempts call) :key (lambda (plist) (getf plist :number)))
       t))

(defun view-attempt (call number retries peer metadata interceptors)
  "Call the INTERCEPTORS that apply to CALL's method for an attempt of CALL. RETRIES is the RETRIES
structure of CALL, or nil. NUMBER other attempts came before this one, which is sent to PEER with
METADATA. Return two values: the ATTEMPT for the interceptors, or nil without interceptors; and nil,
or the RPC-ERROR with which the interceptors make the attempt fail."
  (let ((own (interceptors-for interceptors (call-rpc-method call))))
    (if own
        (let ((view (make-attempt call number
                                  (kind-of-attempt retries number (failed-p call number))
                                  peer metadata)))
          (values view (intercept-attempt view own)))
        (values nil nil))))

(defun close-attempt (attempt status &key call (message "") (trailer-fields #()))
  "End ATTEMPT with STATUS and call its functions of ON-ATTEMPT-END. The text and the trailing
metadata are MESSAGE and TRAILER-FIELDS, in the form of the transport; or, if CALL is given and
continued with ATTEMPT, those of CALL. Called on the thread that intercepts attempts."
  (setf (attempt-begun attempt) t
        (attempt-message attempt) (if call (nth-value 1 (final-status call)) message)
        (attempt-fields attempt) (or (and call (call-fields call)) #())
        (attempt-trailer-fields attempt) (if call (trailer-fields call) trailer-fields)
        (attempt-status attempt) status)
  (dolist (function (reverse (attempt-functions attempt)))
    (guarding-attempt (attempt)
      (funcall function))))
