;;;; Interceptors of attempts. Interceptors of a channel go around a call, however often it is tried
;;;; (gRFC A6). Those of attempts are called before each attempt goes to its server, the first,
;;;; hedges and transparent retries, too: they may change its metadata, or have it fail, which the
;;;; policy of the call's method then judges as any failure of an attempt. What they want to know of
;;;; its end they ask for by ON-ATTEMPT-END.
;;;;
;;;; An attempt that finds no server is none: nobody is told of it. The channel's own calls are not
;;;; intercepted.
;;;;
;;;; The ATTEMPT that interceptors know of a call's own attempt is in the call's intent, that of
;;;; another in its VIEW (wire/attempt.lisp). A channel without such interceptors makes none.

(in-package #:clgrpc.client)

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
            (rpc:call-path (attempt-call attempt))
            (attempt-peer attempt) (attempt-status attempt))))

(defun attempt-request-metadata (attempt)
  "The metadata that ATTEMPT sends, an alist, at first what its call's user gave. SETFable by an
interceptor, which MISUSE tells of an alist that cannot be sent, or once it is too late."
  (attempt-headers attempt))

(defun (setf attempt-request-metadata) (metadata attempt)
  (when (attempt-begun attempt) (misuse "~A has sent its metadata." attempt))
  (setf (attempt-headers attempt) (status:check-metadata metadata)))

(defun attempt-metadata (attempt)
  "The initial metadata that ATTEMPT, which has ended, got from its server, an alist; nil if no
answer had begun. From any thread."
  (let ((call (attempt-call attempt)))
    (rpc:operate metadata call (attempt-fields attempt))))

(defun attempt-trailers (attempt)
  "The trailing metadata that ATTEMPT, which has ended, got from its server, an alist. From any
thread."
  (let ((call (attempt-call attempt)))
    (rpc:operate metadata call (attempt-trailer-fields attempt))))

(defun on-attempt-end (attempt function)
  "Call FUNCTION without arguments once ATTEMPT has ended, however it does: ATTEMPT-STATUS,
ATTEMPT-METADATA and ATTEMPT-TRAILERS say what came of it. Several functions are called in the order
in which they were given, on the loop: they must not wait. Return ATTEMPT. For interceptors, before
ATTEMPT goes to its server."
  (push function (attempt-functions attempt))
  attempt)

(defun intercept-attempt (attempt interceptors)
  "Call INTERCEPTORS, functions, with ATTEMPT, which is about to go to its server. Return nil, or
the RPC-ERROR that it fails with: what one of them has signalled, or what stands for an error in
one. On the loop."
  (block intercepting
    (loop:guarding (:attempt-interceptor-error :method (rpc:call-path (attempt-call attempt)))
      (handler-bind ((status:rpc-error (lambda (error) (return-from intercepting error))))
        (dolist (interceptor interceptors) (funcall interceptor attempt)))
      (setf (attempt-begun attempt) t)
      (return-from intercepting nil))
    (rpc:verdict-error :interceptor-error '())))

(defun end-attempt (attempt status message fields trailer-fields)
  "ATTEMPT is over with STATUS and its text MESSAGE, and has got metadata, FIELDS and
TRAILER-FIELDS, in the form of its transport. On the loop."
  (setf (attempt-begun attempt) t
        (attempt-message attempt) message
        (attempt-fields attempt) fields
        (attempt-trailer-fields attempt) trailer-fields
        (attempt-status attempt) status)
  (dolist (function (reverse (attempt-functions attempt)))
    (loop:guarding (:attempt-interceptor-error :method (rpc:call-path (attempt-call attempt)))
      (funcall function))))

;;; Views

(defun kind-of-attempt (call number)
  "Why the attempt of CALL that NUMBER others came before is made, as ATTEMPT-KIND has it."
  (let ((retries (wire:call-retries call)))
    (cond ((find number (rpc:failed-attempts call) :key (lambda (plist) (getf plist :number)))
           :transparent)
          ((zerop number) :first)
          ((and retries (hedging-policy-p (wire:retries-policy retries))) :hedge)
          (t :retry))))

(defun interceptor-setback (call error)
  "How an attempt of CALL fails since an interceptor has signalled ERROR."
  (make-setback (status:rpc-error-status error) (or (status:rpc-error-message error) "")
                :how (list :details (status:rpc-error-details-octets error) :ended-by :local
                           :sent (and (rpc:failed-attempts call) t))))

(defun view-attempt (call link number)
  "Call the interceptors for the attempt of CALL on LINK that NUMBER others came before. Return what
they know of it, nil if there are none, and how it fails if they have it fail."
  (let ((interceptors (if (side-call-p call)
                          '()
                          (rpc:interceptors-for (core-attempt-interceptors (client-call-core call))
                                                (call-rpc-method call)))))
    (if interceptors
        (let* ((view (make-attempt call number (kind-of-attempt call number)
                                           (wire:link-peer link) (rpc:outgoing-metadata call)))
               (error (intercept-attempt view interceptors)))
          (values view (and error (interceptor-setback call error))))
        (values nil nil))))

(defun own-view (call)
  "What interceptors know of CALL's own attempt, or nil. SETFable."
  (let ((intent (rpc:call-intent call)))
    (and intent (the (or null attempt) (rpc:intent-attempt intent)))))

(defun (setf own-view) (view call)
  (setf (rpc:intent-attempt (rpc:ensure-intent call)) view))

(defun take-view (call)
  "As OWN-VIEW, which CALL's next own attempt will have anew."
  (let ((view (own-view call)))
    (when view (setf (own-view call) nil))
    view))

(defun view-metadata (call view)
  "The metadata of an attempt of CALL of which interceptors know VIEW or nil."
  (if view
      (attempt-request-metadata view)
      (rpc:outgoing-metadata call)))

(defun end-view (call attempt status)
  "ATTEMPT of CALL, or if it is nil CALL's own, is over with STATUS: tell interceptors."
  (let ((view (if attempt (wire:attempt-view attempt) (take-view call))))
    (cond ((null view))
          (attempt
           (end-attempt view status (attempt-message view) #()
                                (wire:attempt-trailers attempt)))
          (t (let ((outcome (rpc:call-outcome call)) (ending (rpc:call-ending call)))
               (end-attempt view (or status :cancelled)
                                    (if outcome (rpc:outcome-message outcome) "")
                                    (or (call-fields call) #())
                                    (if ending (rpc:ending-trailer-fields ending) #())))))))
