;;;; The console as an observer: what it counts and keeps of calls, on every transport.

(in-package #:clgrpc.tests.console)

(test consoles-are-checked
  (signals grpc:misuse (console:make-console :path "console/"))
  (signals grpc:misuse (console:make-console :path "/console"))
  (signals grpc:misuse (console:make-console :path "/con sole/"))
  (is (search ":token of a console has 16 to 256 letters"
              (handler-case (console:make-console :token "short")
                (grpc:misuse (error) (princ-to-string error)))))
  (signals grpc:misuse (console:make-console :token "a secret with blanks"))
  (signals grpc:misuse (console:make-console :metrics :mine))
  (signals grpc:misuse (console:make-console :exemplar 3))
  (signals grpc:misuse (console:make-console :remote t :token nil))
  (let ((one (console:make-console)) (other (console:make-console)))
    (is (= 32 (length (console::console-token one))))
    (is (string/= (console::console-token one) (console::console-token other)))
    (is (null (search (console::console-token one) (prin1-to-string one))))))

(defun kept-plists (console)
  (mapcar #'console::sample-plist (console::samples-after console 0)))

(defun counted (metrics name)
  (loop for family in (metrics:collect metrics :names (list name))
        sum (loop for point in (metrics:family-points family) sum (metrics:point-count point))))

(test calls-are-kept-and-counted
  (with-shown (console server channel :exemplar (fn (_call) '(("trace_id" . "77"))))
    (ask channel (note 1))
    (caught (ask channel (note 0)))
    (fetch server "/console/" :headers (bearer console))
    (eventually (= 2 (length (kept-plists console))))
    (is (= 2 (counted (console:console-metrics console) "grpc.server.call.duration"))
        "a request of HTTP is no call")
    (destructuring-bind (well failed) (kept-plists console)
      (is (equal '(:server "/lab.Bench/Ask" "OK" "77")
                 (loop for key in '(:role :method :status :trace-id) collect (getf well key))))
      (is (equal '("NOT_FOUND" "no such note")
                 (loop for key in '(:status :message) collect (getf failed key))))
      (is (plusp (getf well :seconds))))))

(test metrics-of-the-users-count-once
  (let* ((metrics (grpc:make-metrics)) (console (console:make-console :metrics metrics)))
    (is (eq metrics (console:console-metrics console)))
    (with-probe (channel :options (list :observer (list metrics console)))
        (:ask #'double)
      (ask channel (note 1))
      (eventually (kept-plists console))
      (is (= 1 (counted metrics "grpc.server.call.duration"))))))

(test metrics-of-the-users-need-not-be-given-twice
  (let* ((metrics (grpc:make-metrics)) (console (console:make-console :metrics metrics)))
    (with-probe (channel :options (list :observer console)) (:ask #'double)
      (ask channel (note 1))
      (eventually (kept-plists console))
      (is (= 1 (counted metrics "grpc.server.call.duration"))))))

(test channels-and-calls-within-the-image
  (let ((console (console:make-console)))
    (with-probe (channel :channel-options (list :observer console)) (:ask #'double)
      (ask channel (note 1)))
    (is (equal '(:client) (mapcar (lambda (plist) (getf plist :role)) (kept-plists console))))
    (with-started (server (start-probe (list :ask #'double)))
      (let ((channel (grpc:server-channel server :observer console)))
        (ask channel (note 1))
        (eventually (= 2 (length (kept-plists console))))))
    (is (= 2 (counted (console:console-metrics console) "grpc.client.call.duration")))))

(test the-log-is-heard
  (let ((console (console:make-console)) (mark (gensym "EVENT")))
    (log-event :debug mark :number 5)
    (is (find mark (console::entries-after (console::console-tail console) 0)
              :key #'console::entry-event))))

(test observers-that-the-option-adds
  "A console, and metrics where there are none."
  (flet ((added (&rest given)
           (mapcar #'type-of (console::make-console-as-asked given))))
    (is (equal '(metrics:metrics console:console) (added :console "127.0.0.1:0")))
    (is (equal '(console:console)
               (added :console "127.0.0.1:0" :observer (list (metrics:make-metrics)))))
    (is (null (added :console "127.0.0.1:0" :observer (list (console:make-console)))))
    (is (null (added)))))
