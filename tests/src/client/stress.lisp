;;;; Mixed calls from several threads for a while, every answer checked. The seed is printed if one
;;;; is wrong; *STRESS-SEED* repeats a run as far as threads allow.

(in-package #:clgrpc.tests.client)
(in-suite :clgrpc.client)

(defparameter *stress-seconds* 5)
(defvar *stress-seed* nil "An integer, or nil for a new seed in each run.")

(defun random-note (number random)
  (note number :body (if (zerop (random 50 random)) (random 200000 random) (random 300 random))))

(defun same-p (sent received)
  (and (= (number-of sent) (number-of received))
       (= (length (lab:note-body sent)) (length (lab:note-body received)))))

(defun stress-handlers ()
  "Handlers that do what the number of a note says: fail, wait, answer later, or simply answer."
  (list :ask (lambda (note call)
               (case (mod (number-of note) 10)
                 (0 (grpc:fail :aborted (princ-to-string (number-of note))))
                 (1 (grpc:after call 0.002 (lambda () (grpc:reply call note))) call)
                 (2 (sb-thread:thread-yield) note)
                 (t note)))
        :watch (lambda (note call)
                 (dotimes (i (mod (number-of note) 40)) (grpc:send call note))
                 nil)
        :collect #'add-up
        :chat (lambda (stream call)
                (cond ((evenp (random 1000))
                       (grpc:on-message stream (lambda (note) (grpc:send call note)))
                       (grpc:on-half-close stream (lambda () (grpc:finish call)))
                       call)
                      (t (echo stream call))))))

(defun check-ask (channel number random)
  (let* ((sent (random-note number random))
         (error nil)
         (reply (handler-case (ask channel sent)
                  (grpc:rpc-error (condition) (setf error condition) nil))))
    (if (zerop (mod number 10))
        (and error (eq :aborted (grpc:rpc-error-status error))
             (string= (princ-to-string number) (grpc:rpc-error-message error)))
        (and reply (same-p sent reply)))))

(defun check-watch (channel number random)
  (let ((sent (random-note number random)) (count 0))
    (grpc:do-messages (note (watch channel sent) (= count (mod number 40)))
      (unless (same-p sent note) (return nil))
      (incf count))))

(defun check-collect (channel number random)
  (let ((notes (loop repeat (random 30 random) collect (random-note number random))))
    (= (* number (length notes)) (number-of (collect channel notes)))))

(defun check-chat (channel number random)
  (let ((notes (loop repeat (random 30 random)
                     for i from number
                     collect (random-note i random))))
    (if (zerop (random 3 random))
        (let ((call (chat channel :open)))
          (prog1 (every (lambda (note) (grpc:send call note) (same-p note (grpc:receive call)))
                        notes)
            (grpc:close-send call)))
        (let ((left notes))
          (grpc:do-messages (note (chat channel notes) (null left))
            (unless (and left (same-p (pop left) note)) (return nil)))))))

(defun check-cancelled (channel number random)
  (let ((call (chat channel :open)))
    (grpc:send call (random-note number random))
    (when (evenp number) (grpc:receive call))
    (grpc:cancel call)
    (typep (caught (loop while (grpc:receive call))) 'grpc:cancelled)))

(defun check-future (channel number random)
  (let ((futures (loop for i from 1 to 5
                       for sent = (random-note (+ 3 (* 10 (+ number i))) random)
                       collect (cons sent (grpc:call-async #'lab.bench:ask channel sent
                                                           :timeout 20)))))
    (loop for (sent . future) in futures
          always (same-p sent (grpc:await future)))))

(defun stress (channels seed end)
  "Make random calls until END; return how many there were, or what went wrong."
  (let ((random (sb-ext:seed-random-state seed)) (count 0))
    (loop until (> (monotonic-ns) end)
          do (let ((channel (aref channels (random (length channels) random)))
                   (number (random 100000 random))
                   (check (aref #(check-ask check-ask check-ask check-watch check-collect check-chat
                                  check-cancelled check-future)
                                (random 8 random))))
               (unless (funcall check channel number random)
                 (return-from stress (list check number)))
               (incf count)))
    count))

(test stress
  "Every answer is right, whatever runs beside it and wherever handlers run, and everything comes to
an end."
  (let ((seed (or *stress-seed* (random (ash 1 31) (make-random-state t))))
        (servers (loop for execution in '(:auto :inline :blocking)
                       collect (start-probe (stress-handlers) :loops 2 :execution execution))))
    (with-log ()
      (unwind-protect
           (let* ((channels (map 'vector (lambda (server)
                                           (grpc:make-channel (grpc:server-address server)))
                                 servers))
                  (end (+ (monotonic-ns) (seconds-ns *stress-seconds*)))
                  (results (with-threads (i 8) (stress channels (+ seed i) end))))
             (is (every #'integerp results) "seed ~D:~{ ~S~}" seed results)
             (is (> (reduce #'+ (remove-if-not #'integerp results)) 100))
             (map nil #'grpc:close-channel channels))
        (dolist (server servers) (is-true (grpc:stop-server server :drain 10)))))))
