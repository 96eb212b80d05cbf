;;;; What a backend does with a stream: what the first rule that fits says, or else it answers. The
;;;; service is lab.Bench, whose messages are Notes: that of the answer has as many octets as the
;;;; number of the request says. Health/Watch and StreamCoreMetrics are served beside it.

(in-package #:clgrpc.tests.policy)

(defstruct (rule (:copier nil))
  "What is done with some attempts."
  ;; with which: those for which all that is not nil fits
  (call nil)                            ; x-call-id
  (previous nil)                        ; grpc-previous-rpc-attempts
  (skip 0 :type index)                  ; but not the first so many
  (times nil)                           ; and only so many
  (seen 0 :type index)                  ; how many there have been
  ;; what
  (on nil)                              ; :headers, or after so many messages; nil: at the end
  (headers-first nil)                   ; Response-Headers go out at once
  (delay 0)                             ; seconds until the rest
  (stall nil)                           ; there is no rest
  (status nil)                          ; what it ends with, or nil: an answer
  (message "")                          ; of STATUS
  (pushback nil)                        ; grpc-retry-pushback-ms, a string
  (reset nil))                          ; the code of RST_STREAM

(defun make-rule-of (description)
  "The rule with the slots that the plist DESCRIPTION has."
  (apply #'make-rule description))

(defstruct (attempt (:copier nil))
  "A stream of a client."
  (line nil :type line)                 ; the connection
  (id 0 :type index)                    ; of the stream
  (fields '() :type list)               ; the request's, (name value)
  (at 0)                                ; when it came, in seconds
  (rule nil)                            ; the RULE for it
  (inbox (make-octets 0) :type octets)  ; what has come of the next message
  (messages '() :type list)             ; octets of each, newest first
  (complete nil :type boolean)          ; the request has ended
  (begun nil :type boolean)             ; its rule is applied
  (opened nil :type boolean)            ; Response-Headers are out
  (watched nil)                         ; what Watch was told last
  (ended nil)                           ; a status, :reset, :cancelled by the client, :lost
  (reset-code nil))                     ; of the client's RST_STREAM

(defmethod print-object ((rule rule) stream)
  (print-unreadable-object (rule stream :type t)
    (format stream "~D seen" (rule-seen rule))))

(defmethod print-object ((attempt attempt) stream)
  (print-unreadable-object (attempt stream :type t)
    (format stream "~A on ~A" (attempt-field attempt ":path") (attempt-line attempt))))

(defun attempt-field (attempt name)
  "The value of the request's field NAME, or nil."
  (second (find name (attempt-fields attempt) :key #'first :test #'string=)))

(defun attempt-backend (attempt)
  (line-backend (attempt-line attempt)))

(defun test-call-p (attempt)
  (uiop:string-prefix-p "/lab.Bench/" (attempt-field attempt ":path")))

(defun note-end (attempt how)
  (unless (attempt-ended attempt) (setf (attempt-ended attempt) how)))

(defun forget-attempt (attempt)
  (let ((line (attempt-line attempt)))
    (setf (line-attempts line) (remove attempt (line-attempts line)))
    (close-when-done line)))

(defun rule-for (backend attempt)
  "The first rule of BACKEND that fits ATTEMPT, or nil."
  (let ((previous (parse-integer (or (attempt-field attempt "grpc-previous-rpc-attempts") "0"))))
    (dolist (rule (backend-rules backend))
      (when (and (or (null (rule-call rule))
                     (equal (rule-call rule) (attempt-field attempt "x-call-id")))
                 (or (null (rule-previous rule)) (= previous (rule-previous rule))))
        (let ((number (incf (rule-seen rule))))
          (when (and (< (rule-skip rule) number)
                     (or (null (rule-times rule))
                         (<= number (+ (rule-skip rule) (rule-times rule)))))
            (return rule)))))))

;;; What comes

(defun take-head (line id fields end)
  "A stream begins, unless LINE drains."
  (unless (line-draining line)
    (let* ((backend (line-backend line))
           (attempt (make-attempt :line line :id id :fields fields :at (sim:now)
                                  :complete (and end t))))
      (setf (line-last-id line) id)
      (push attempt (line-attempts line))
      (note-attempt (backend-lab backend) attempt)
      (when (test-call-p attempt)
        (let ((count (count-if #'test-call-p (line-attempts line))))
          (setf (line-most line) (max count (line-most line)))
          (when (and (line-limit line) (> count (line-limit line)) (null (line-offered line)))
            (incf (line-over line))))
        (setf (attempt-rule attempt) (rule-for backend attempt)))
      (go-on attempt))))

(defun find-attempt (line id)
  (find id (line-attempts line) :key #'attempt-id))

(defun take-data (line id octets end)
  (let ((attempt (find-attempt line id)))
    (when attempt
      (let ((inbox (concatenate 'octets (attempt-inbox attempt) octets)))
        (loop while (and (<= 5 (length inbox)) (<= (+ 5 (u32be inbox 1)) (length inbox)))
              do (let ((after (+ 5 (u32be inbox 1))))
                   (push (subseq inbox 5 after) (attempt-messages attempt))
                   (setf inbox (subseq inbox after))))
        (setf (attempt-inbox attempt) inbox))
      (when end (setf (attempt-complete attempt) t))
      (go-on attempt))))

(defun take-reset (line id code)
  (let ((attempt (find-attempt line id)))
    (when attempt
      (note-end attempt :cancelled)
      (setf (attempt-reset-code attempt) code)
      (forget-attempt attempt))))

;;; What goes

(defun open-answer (attempt)
  (unless (shiftf (attempt-opened attempt) t)
    (tell (attempt-line attempt)
          `(:headers ,(attempt-id attempt)
                     ((":status" "200") ("content-type" "application/grpc")
                      ("x-backend" ,(backend-name (attempt-backend attempt))))))))

(defun send-answer (attempt message)
  (let ((octets (grpc:serialize message)))
    (open-answer attempt)
    (tell (attempt-line attempt)
          `(:data ,(attempt-id attempt)
                  ,(concatenate 'octets (octets-of 0) (dialogue:big-endian (length octets) 4)
                                octets)))))

(defun end-answer (attempt status &key (message "") fields)
  (note-end attempt status)
  (forget-attempt attempt)
  (tell (attempt-line attempt)
        `(:headers ,(attempt-id attempt)
                   (,@(unless (attempt-opened attempt)
                        '((":status" "200") ("content-type" "application/grpc")))
                    ("grpc-status" ,(princ-to-string (grpc:status-code status)))
                    ,@(unless (string= "" message) `(("grpc-message" ,message)))
                    ("x-backend" ,(backend-name (attempt-backend attempt)))
                    ,@fields)
                   :end-stream))
  (unless (attempt-complete attempt)
    (tell (attempt-line attempt) `(:rst-stream ,(attempt-id attempt) :no-error))))

(defun may-call-p (attempt)
  "True if ATTEMPT has the token that its backend asks for, if it asks for one."
  (let ((token (backend-token (attempt-backend attempt))))
    (or (null token)
        (equal token (attempt-field attempt "authorization")))))

(defun go-on (attempt)
  "Do what ATTEMPT asks for, once enough of it has come."
  (let* ((rule (or (attempt-rule attempt) (make-rule)))
         (on (rule-on rule)))
    (when (and (not (attempt-begun attempt))
               (or (attempt-complete attempt) (eq on :headers)
                   (and (integerp on) (<= on (length (attempt-messages attempt))))))
      (setf (attempt-begun attempt) t)
      (let ((path (attempt-field attempt ":path")))
        (cond ((not (may-call-p attempt)) (end-answer attempt :unauthenticated))
              ((string= path "/grpc.health.v1.Health/Watch") (report-health attempt))
              ((string= path "/xds.service.orca.v3.OpenRcaService/StreamCoreMetrics")
               (tell-load attempt))
              (t (follow rule attempt)))))))

(defun follow (rule attempt)
  "Do with ATTEMPT what RULE says."
  (when (rule-headers-first rule) (open-answer attempt))
  (cond ((rule-stall rule))
        ((plusp (rule-delay rule)) (sim:at (rule-delay rule) (lambda () (conclude rule attempt))))
        (t (conclude rule attempt))))

(defun conclude (rule attempt)
  (cond ((attempt-ended attempt))
        ((rule-reset rule)
         (note-end attempt :reset)
         (forget-attempt attempt)
         (tell (attempt-line attempt) `(:rst-stream ,(attempt-id attempt) ,(rule-reset rule))))
        ((rule-status rule)
         (end-answer attempt (rule-status rule)
                     :message (rule-message rule)
                     :fields (when (rule-pushback rule)
                               `(("grpc-retry-pushback-ms" ,(rule-pushback rule))))))
        (t (answer-attempt attempt))))

(defun answer-attempt (attempt)
  (let* ((backend (attempt-backend attempt))
         (load (backend-load backend)))
    (send-answer attempt
                 (lab:make-note
                  :text (backend-name backend)
                  :body (make-octets (lab:note-number
                                      (grpc:parse-message 'lab:note
                                                          (first (attempt-messages attempt)))))))
    (end-answer attempt :ok
                :fields (when load
                          `(("endpoint-load-metrics-bin"
                             ,(encode-base64 (grpc:serialize (load-report load)))))))))

;;; What a backend says of itself

(defun load-report (load)
  (apply #'orca:make-orca-load-report load))

(defun tell-load (attempt)
  "Send reports at the interval that ATTEMPT asks for, while it lives."
  (let ((load (backend-load-stream (attempt-backend attempt))))
    (cond ((attempt-ended attempt))
          ((null load) (end-answer attempt :unimplemented))
          (t (send-answer attempt (load-report load))
             (end-internal-call attempt)
             (sim:at (load-interval attempt) (lambda () (tell-load attempt)))))))

(defun load-interval (attempt)
  "The seconds between the reports that ATTEMPT asks for."
  (grpc:duration-in-seconds
   (orca-service:orca-load-report-request-report-interval
    (grpc:parse-message 'orca-service:orca-load-report-request
                        (first (attempt-messages attempt))))))

(defun report-health (attempt)
  "Say how the backend is, if that is news."
  (let* ((health (backend-health (attempt-backend attempt)))
         (service (health:health-check-request-service
                   (grpc:parse-message 'health:health-check-request
                                       (first (attempt-messages attempt)))))
         (status (if (equal service (first health)) (second health) :service-unknown)))
    (cond ((null health) (end-answer attempt :unimplemented))
          ((not (eq status (shiftf (attempt-watched attempt) status)))
           (send-answer attempt (health:make-health-check-response :status status))
           (end-internal-call attempt)))))

(defun end-internal-call (attempt)
  "End ATTEMPT, which has sent a message, if its backend ends all of its kind."
  (let ((status (backend-side-end (attempt-backend attempt))))
    (when status (end-answer attempt status))))

(defun tell-all-health (line)
  "Say how the backend is to who watches it on LINE."
  (dolist (attempt (line-attempts line))
    (when (attempt-watched attempt) (report-health attempt))))
