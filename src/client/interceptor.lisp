;;;; Interceptors of attempts (calling/attempt.lisp) over the wire. The view of an attempt, what
;;;; they know of it, is the call's own if the attempt is that, else the attempt has it
;;;; (wire/attempt.lisp). The channel's own calls are not intercepted.

(in-package #:clgrpc.client)

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
  (let ((trailers (status:rpc-error-trailers error)))
    (make-setback (status:rpc-error-status error) (or (status:rpc-error-message error) "")
                  :how (list :details (status:rpc-error-details-octets error) :ended-by :local
                             :sent (and (rpc:failed-attempts call) t))
                  :pushback (metadata-pushback trailers)
                  :trailers (wire:metadata-fields trailers))))

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
           (close-attempt view status (attempt-message view) #() (wire:attempt-trailers attempt)))
          (t (close-own-view view call (or status :cancelled))))))
