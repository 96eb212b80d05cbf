;;;; Channels within the image: to a server object, to the name that a server listens on,
;;;; `inproc:NAME`, and to a service object.

(in-package #:clgrpc.inproc)

(defclass inproc-channel (method:channel)
  ((inproc-core :initarg :inproc-core :reader channel-inproc-core) ; the data that its calls share
   ;; guards the slots below, and the closing of INPROC-CORE
   (lock :initform (sb-thread:make-mutex :name "clgrpc in-process channel") :reader channel-lock)
   (state-functions :initform '() :accessor channel-state-functions) ; see ON-STATE-CHANGE
   ;; the queue of threads that wait for another state
   (closed :initform (sb-thread:make-waitqueue :name "clgrpc channel closed")
           :reader channel-closed))
  (:documentation "A channel whose calls stay in the image. SERVER-CHANNEL makes it, or MAKE-CHANNEL
for a target inproc:NAME; CLOSE-CHANNEL ends it."))

(defclass intercepted-inproc-channel (calling:interception inproc-channel) ()
  (:documentation "An in-process channel with interceptors."))

(defmethod method:channel-target ((channel inproc-channel))
  (inproc-core-target (channel-inproc-core channel)))

(define-printer (channel inproc-channel)
  "~A ~(~A~)" (method:channel-target channel) (calling:channel-state channel))

(defmethod credentials:channel-secure-p ((channel inproc-channel))
  t)

;;; Callees

(defglobal **callees** (make-hash-table :test 'equal :synchronized t)) ; by name

(defun server-callee (server)
  (serving:ensure-acceptor server #'callee-p
                          (lambda ()
                            (let ((callee (make-callee :server server
                                                       :services (serving:server-services server)
                                                       :interceptors
                                                       (serving:server-interceptors server)
                                                       :observer (rpc:observer-for
                                                                  (serving:server-observer server)
                                                                  :role :server)
                                                       :options (serving:server-options server))))
                              (renew-table callee)
                              callee))))

(defun callee-address (address)
  "ADDRESS, inproc:NAME, with the scheme in lower case. Signal MISUSE if NAME is empty."
  (let ((start (length "inproc:")))
    (when (= start (length address)) (misuse "~S has no name: write inproc:NAME." address))
    (concatenate 'string "inproc:" (subseq address start))))

(defun listen-here (server address)
  "Register SERVER as the callee of channels to ADDRESS."
  (let ((address (callee-address address))
        (callee (server-callee server)))
    (sb-ext:with-locked-hash-table (**callees**)
      (when (gethash address **callees**) (misuse "Another server listens on ~A." address))
      (setf (gethash address **callees**) callee))
    (unless (callee-name callee) (setf (callee-name callee) address))))

(defmethod serving:acceptor-state ((callee callee))
  (let ((tally (callee-tally callee)))
    (values (callee-name callee) (plusp (tally-open tally)) (tally-ended tally))))

(defun callee-open-call-pairs (callee)
  (sb-thread:with-mutex ((callee-lock callee))
    (alexandria:hash-table-keys (callee-call-pairs callee))))

(defun close-callee (callee)
  "Let no more calls of CALLEE begin."
  (setf (callee-state callee) :closed)
  (sb-ext:with-locked-hash-table (**callees**)
    (loop for name in (loop for name being the hash-keys of **callees** using (hash-value value)
                            when (eq callee value) collect name)
          do (remhash name **callees**)))
  (forget-routes callee))

(defmethod serving:close-acceptor ((callee callee) &optional status text)
  (cond (status (setf (callee-ending callee) (list status text)
                      (callee-state callee) :abandoned)
                (dolist (call-pair (callee-open-call-pairs callee))
                  (end-by-server call-pair status text)))
        (t (close-callee callee))))

;;; Channels

(defun keep-former-callee (inproc-core callee)
  "Keep CALLEE, to which the name of INPROC-CORE led before, while it has open calls."
  (flet ((over-p (callee)
           (and (zerop (tally-open (callee-tally callee)))
                (or (null (callee-asking callee))
                    (zerop (tally-open (callee-tally (callee-asking callee))))))))
    (sb-ext:atomic-update (inproc-core-former inproc-core)
                          (lambda (callees) (remove-if #'over-p (adjoin callee callees))))))

(defun find-named-callee (inproc-core)
  "Look up the callee of INPROC-CORE, which has no callee yet, or whose callee is closed.
Return the callee, or nil if no server listens on the channel's name."
  (let ((name (inproc-core-name inproc-core))
        (before (inproc-core-callee inproc-core)))
    (when name
      (when before (keep-former-callee inproc-core before))
      (setf (inproc-core-callee inproc-core) (values (gethash name **callees**))))))

(define-hot callee-of ((inproc-core inproc-core)) (or null callee)
  "The callee of INPROC-CORE, or nil if no server listens on its name."
  (let ((callee (inproc-core-callee inproc-core)))
    (if (and callee (eq :open (callee-state callee)))
        callee
        (find-named-callee inproc-core))))

(defmethod calling:close-channel ((channel inproc-channel))
  (let* ((inproc-core (channel-inproc-core channel))
         (callees (remove nil (adjoin (inproc-core-callee inproc-core)
                                      (inproc-core-former inproc-core)))))
    (when (sb-thread:with-mutex ((channel-lock channel))
            (prog1 (shiftf (inproc-core-open inproc-core) nil)
              (sb-thread:condition-broadcast (channel-closed channel))))
      (dolist (callee callees)
        (unless (callee-server callee) (forget-routes callee))) ; the callee of this channel alone
      (dolist (callee (append callees (remove nil (mapcar #'callee-asking callees))))
        (dolist (call-pair (callee-open-call-pairs callee))
          (when (eq inproc-core (call-inproc-core (call-pair-server call-pair)))
            (rpc:abort-as (call-pair-client call-pair) :channel-closed))))
      (end-waiting inproc-core)
      (release-inproc-core inproc-core)
      (dolist (function (channel-state-functions channel))
        (calling:tell-state function :shutdown))))
  nil)

(defmethod calling:channel-state ((channel inproc-channel))
  (if (inproc-core-open (channel-inproc-core channel)) :ready :shutdown))

(defmethod calling:on-state-change ((channel inproc-channel) function)
  (let ((open (sb-thread:with-mutex ((channel-lock channel))
                (when (inproc-core-open (channel-inproc-core channel))
                  (setf (channel-state-functions channel)
                        (append (channel-state-functions channel) (list function)))
                  t))))
    (calling:tell-state function (if open :ready :shutdown)))
  channel)

(defmethod calling:wait-for-state-change ((channel inproc-channel) state &key (timeout 10))
  (loop:await-until (channel-closed channel) (channel-lock channel) (loop:notice-end timeout)
                    (lambda ()
                      (let ((now (calling:channel-state channel)))
                        (and (not (eq now state)) now)))))

(defmethod calling:reset-back-off ((channel inproc-channel))
  channel)

(defmethod calling:ensure-connected ((channel inproc-channel) &key timeout)
  (declare (ignore timeout))
  (let ((inproc-core (channel-inproc-core channel)))
    (unless (inproc-core-open inproc-core) (misuse "~A is closed." channel))
    (unless (callee-of inproc-core)
      (error (status:make-rpc-error :unavailable :ended-by :transport :sent nil
                                              :message (absence-text inproc-core))))
    channel))

(defun absence-text (inproc-core)
  (if (inproc-core-name inproc-core)
      (format nil "no server listens on ~A" (inproc-core-name inproc-core))
      "the server has stopped"))
