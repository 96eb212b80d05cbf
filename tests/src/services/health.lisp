;;;; Health: the answers of Check, List and Watch, as callers and grpc-health-probe see them.

(in-package #:clgrpc.tests.services)

(defun call-with-health (function)
  "Call FUNCTION with a server of a probe and a health service, that service, and a channel."
  (let ((service (make-instance 'grpc:health-service)))
    (with-started (server (grpc:start-server (list (make-probe) service)) :drain 0)
      (grpc:with-channel (channel (grpc:server-address server))
        (funcall function server service channel)))))

(defmacro with-health ((server service channel) &body body)
  `(call-with-health (lambda (,server ,service ,channel)
                       (declare (ignorable ,server ,service ,channel))
                       ,@body)))

(defun health-request (name) (health:make-health-check-request :service name))

(defun checked (channel name)
  (health:health-check-response-status
   (health-methods:check channel (health-request name) :timeout +patience+)))

(defun watch-health (channel name)
  (health-methods:watch channel (health-request name) :timeout +patience+))

(defun next-status (call)
  (let ((response (grpc:receive call)))
    (and response (health:health-check-response-status response))))

(test check-knows-the-servers-services
  (with-health (server service channel)
    (is (eq :serving (checked channel "")))
    (is (eq :serving (checked channel "lab.Bench")))
    (is (eq :serving (checked channel "grpc.health.v1.Health")))
    (is (typep (caught (checked channel "no.Such")) 'grpc:not-found))
    (is (eq :serving (grpc:health-status service "lab.Bench")))
    (is (null (grpc:health-status service "no.Such")))))

(test statuses-can-be-set
  (with-health (server service channel)
    (is (eq :not-serving (grpc:set-health-status service "lab.Bench" :not-serving)))
    (is (eq :not-serving (checked channel "lab.Bench")))
    (grpc:set-health-status service "made.Up" :unknown)
    (is (eq :unknown (checked channel "made.Up")))
    (signals grpc:misuse (grpc:set-health-status service "" :fine))
    (flet ((complaint (function &rest arguments)
             (handler-case (progn (apply function arguments) "")
               (grpc:misuse (error) (princ-to-string error)))))
      ;; the server instead of the service, a class instead of a name
      (dolist (text (list (complaint #'grpc:set-health-status server "" :serving)
                          (complaint #'grpc:health-status server "")
                          (complaint #'grpc:health-handler server)))
        (is (search "is not a health service: give the instance of HEALTH-SERVICE" text)))
      (dolist (text (list (complaint #'grpc:set-health-status service 'lab:bench :serving)
                          (complaint #'grpc:health-status service 'lab:bench)))
        (is (search "BENCH is not the name of a service: give its full name" text))))
    (is (equal '(("" . :serving) ("grpc.health.v1.Health" . :serving) ("lab.Bench" . :not-serving)
                 ("made.Up" . :unknown))
               (sort (loop for (name . response)
                             in (grpc:map-alist (health:health-list-response-statuses
                                                 (health-methods:list
                                                  channel (health:make-health-list-request)
                                                  :timeout +patience+)))
                           collect (cons name (health:health-check-response-status response)))
                     #'string< :key #'car)))))

(test a-health-service-of-one-server-after-the-other
  "Each new server sets its services to :serving, and their status can be set."
  (let ((service (make-instance 'grpc:health-service)))
    (loop repeat 2
          do (let ((server (grpc:start-server (list (make-probe) service))))
               (unwind-protect
                    (grpc:with-channel (channel (grpc:server-address server))
                      (is (eq :serving (checked channel "")))
                      (is (eq :serving (checked channel "lab.Bench")))
                      (grpc:set-health-status service "lab.Bench" :unknown)
                      (is (eq :unknown (next-status (watch-health channel "lab.Bench"))))
                      (grpc:set-health-status service "lab.Bench" :serving))
                 (grpc:stop-server server :drain 0))
               (is (eq :not-serving (grpc:health-status service "lab.Bench")))
               (is (eq :not-serving (grpc:health-status service "")))))))

(test a-health-service-of-two-servers
  "It stops serving after the last of them has stopped; watchers at the first one end."
  (let* ((service (make-instance 'grpc:health-service))
         (servers (loop repeat 2 collect (grpc:start-server (list (make-probe) service)))))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address (first servers)))
           (let ((watch (watch-health channel "lab.Bench")))
             (is (eq :serving (next-status watch)))
             (grpc:stop-server (first servers) :drain 20)
             (is (typep (caught (loop (next-status watch))) 'grpc:unavailable)))
           (is (eq :serving (grpc:health-status service "lab.Bench")))
           (grpc:with-channel (channel (grpc:server-address (second servers)))
             (is (eq :serving (checked channel "lab.Bench")))))
      (dolist (server servers) (grpc:stop-server server :drain 0)))
    (is (eq :not-serving (grpc:health-status service "lab.Bench")))))

(test a-server-that-cannot-start-changes-no-status
  "Its address may be in use, for example; the next server has the statuses set before."
  (let ((service (make-instance 'grpc:health-service)))
    (with-started (other (grpc:start-server '()) :drain 0)
      (grpc:set-health-status service "" :not-serving)
      (grpc:set-health-status service "lab.Bench" :unknown)
      (is (null (ignore-errors (grpc:start-server (list (make-probe) service)
                                                  :listen (grpc:server-address other)))))
      (with-started (server (grpc:start-server (list (make-probe) service)) :drain 0)
        (is (eq :not-serving (grpc:health-status service "")))
        (is (eq :unknown (grpc:health-status service "lab.Bench")))))))

(test names-of-no-service-are-logged
  "Before or after the server starts, a status for a misspelt name causes a warning."
  (with-log ()
    (let ((service (make-instance 'grpc:health-service)))
      (grpc:set-health-status service "lab.Bensh" :serving)
      (grpc:set-health-status service "lab.Bench" :serving)
      (is (null (events-of :health-of-unserved-name)))
      (let ((server (grpc:start-server (list (make-probe) service))))
        (grpc:set-health-status service "database" :serving)
        (loop repeat 2 do (grpc:set-health-status service "lab.Ench" :not-serving))
        (grpc:set-health-status service "" :serving)
        (grpc:stop-server server :drain 0)))
    (is (equal '((:warning "lab.Bensh" "lab.Bench") (:info "database" nil)
                 (:warning "lab.Ench" "lab.Bench"))
               (loop for (level event . plist) in (reverse (car clgrpc.tests.server:*events*))
                     when (eq :health-of-unserved-name event)
                       collect (list level (getf plist :name) (getf plist :likely-name)))))))

(test long-lists-are-refused
  "A hundred services are listed, three of them the server's own; a longer list is refused."
  (with-health (server service channel)
    (loop for i below 98
          for refused = (caught (health-methods:list channel (health:make-health-list-request)
                                                     :timeout +patience+))
          do (is (null refused))
             (grpc:set-health-status service (format nil "s~D" i) :serving))
    (is (equal "more than 100 services"
               (grpc:rpc-error-message
                (caught (health-methods:list channel (health:make-health-list-request)
                                             :timeout +patience+)))))))

(test watchers-of-another-name-are-left
  "A change reaches only the watchers of its name; names may differ by case alone."
  (with-health (server service channel)
    (let ((call (watch-health channel "Late")) (other (watch-health channel "late")))
      (is (eq :service-unknown (next-status call)))
      (is (eq :service-unknown (next-status other)))
      (grpc:set-health-status service "Late" :not-serving)
      (is (eq :not-serving (next-status call)))
      (grpc:set-health-status service "late" :serving)
      (is (eq :serving (next-status other)))
      (grpc:cancel call)
      (grpc:cancel other))))

(defun watcher-lists (service)
  (cons (services::service-strangers service)
        (loop for entry being the hash-values of (services::service-entries service)
              collect (services::entry-watchers entry))))

(defun count-watchers (service)
  (services::with-service (service)
    (loop for head in (watcher-lists service)
          sum (loop for link = (ring-first head) then (ring-first link)
                    until (member link (list nil head))
                    count t))))

(test watchers-hear-of-changes
  "A watcher gets each change of its name, the first status of an unknown name, perhaps :UNKNOWN,
among them; and no change of another name."
  (with-health (server service channel)
    (grpc:with-call (known (watch-health channel "lab.Bench"))
      (grpc:with-call (unknown (watch-health channel "made.Up"))
        (grpc:with-call (other (watch-health channel "not.Made"))
          (is (eq :serving (next-status known)))
          (is (eq :service-unknown (next-status unknown)))
          (is (eq :service-unknown (next-status other)))
          (grpc:set-health-status service "lab.Bench" :serving) ; no change, nothing said
          (grpc:set-health-status service "lab.Bench" :not-serving)
          (is (eq :not-serving (next-status known)))
          (dolist (status '(:not-serving :serving :unknown))
            (grpc:set-health-status service "made.Up" status)
            (is (eq status (next-status unknown))))
          ;; the next status that OTHER is told is the first one of its own name
          (grpc:set-health-status service "not.Made" :unknown)
          (is (eq :unknown (next-status other))))))
    ;; all have gone
    (eventually (zerop (count-watchers service)))))

(defun call-of-watcher (service)
  "The call of the first watcher of the whole server, once there is one."
  (let ((head (services::entry-watchers (services::service-overall service))))
    (wait-until (lambda () (ring-first head)))
    (services::watcher-call (ring-first head))))

(defun add-watchers (service name call count)
  "Add COUNT watchers of NAME, all of CALL, which have their status; return them in order."
  (loop repeat count
        collect (let ((watcher (services::make-watcher :call call :name name)))
                  (setf (services::watcher-told watcher) :serving)
                  (services::add-watcher service watcher)
                  watcher)))

(defun thread-seconds ()
  (multiple-value-bind (seconds nanoseconds)
      (sb-unix::clock-gettime sb-unix:clock-thread-cputime-id)
    (+ seconds (/ nanoseconds 1000000000))))

(test watchers-leave-without-a-search
  "If a peer's connection ends, all its watchers leave, on the loop, the first first."
  (with-health (server service channel)
    (grpc:with-call (watch (watch-health channel ""))
      (is (eq :serving (next-status watch)))
      (let ((call (call-of-watcher service)))
        (flet ((seconds-to-remove (count)
                 (loop repeat 3
                       minimize (let ((watchers (add-watchers service "" call count))
                                      (began (thread-seconds)))
                                  (dolist (watcher watchers)
                                    (services::remove-watcher service watcher))
                                  (- (thread-seconds) began)))))
          (let ((few (seconds-to-remove 2000)) (many (seconds-to-remove 20000)))
            (is (< many (* 40 few)) "2,000 take ~,6F s, 20,000 take ~,6F s" few many)))))))

(test many-watchers-do-not-keep-the-lock
  "Meanwhile others check, watch and leave; all watchers but those that have left get the change."
  (with-health (server service channel)
    (grpc:with-call (watch (watch-health channel ""))
      (is (eq :serving (next-status watch)))
      (let* ((watchers (add-watchers service "" (call-of-watcher service) 20000))
             (head (services::entry-watchers (services::service-overall service)))
             (told '()) (other nil))
        (services::map-watchers
         (lambda (watcher)
           (unless told
             (setf other (in-thread
                           (grpc:health-status service "")
                           (services::remove-watcher service (first (last watchers))))))
           (push watcher told))
         service head)
        (sb-thread:join-thread other)
        (is (equal (butlast watchers) (rest (nreverse told))))
        (is (= 20000 (count-watchers service)))))))

(test long-names
  "Check does not repeat the name; Watch, which would keep it, refuses a name that is too long."
  (with-health (server service channel)
    (let* ((name (make-string 100000 :initial-element #\n))
           (error (caught (checked channel name))))
      (is (typep error 'grpc:not-found))
      (is (< (length (grpc:rpc-error-message error)) 100))
      (is (typep (caught (next-status (watch-health channel (subseq name 0 1001))))
                 'grpc:invalid-argument))
      (is (zerop (count-watchers service)))
      (grpc:with-call (watch (watch-health channel (subseq name 0 1000)))
        (is (eq :service-unknown (next-status watch)))))))

(test watchers-hold-no-thread
  (with-health (server service channel)
    (let* ((before (length (sb-thread:list-all-threads)))
           (calls (loop repeat 90 collect (watch-health channel ""))))
      (is (every (lambda (call) (eq :serving (next-status call))) calls))
      (let ((more (- (length (sb-thread:list-all-threads)) before)))
        ;; those of the reserve that some handlers ran on, but not one for each
        (is (< more 60) "there are ~D more" more))
      (grpc:set-health-status service "" :not-serving)
      (is (every (lambda (call) (eq :not-serving (next-status call))) calls))
      (mapc #'grpc:cancel calls))))

(test health-follows-the-drain
  (let* ((service (make-instance 'grpc:health-service))
         (server (grpc:start-server (list (make-probe) service))))
    (grpc:with-channel (channel (grpc:server-address server))
      (let ((watch (watch-health channel "lab.Bench")))
        (is (eq :serving (next-status watch)))
        (let ((seconds (elapsed-seconds (is-true (grpc:stop-server server :drain 10)))))
          (is (< seconds 5) "watchers do not hold the drain up: ~,2F s" seconds))
        (is (eq :not-serving (next-status watch)))
        (is (typep (caught (next-status watch)) 'grpc:unavailable))
        (is (zerop (count-watchers service)) "no watcher is kept for the next server")
        (is (eq :not-serving (grpc:health-status service "")))
        (grpc:set-health-status service "" :serving)
        (is (eq :not-serving (grpc:health-status service "")) "the status does not change")))))

(test a-watch-that-begins-while-the-server-stops
  "It gets the present status and ends, and is not kept for the next server."
  (with-health (server service channel)
    (grpc:with-call (watch (watch-health channel ""))
      (is (eq :serving (next-status watch)))
      (let ((call (call-of-watcher service)))
        (services::remove-watcher service (ring-first (services::entry-watchers
                                                       (services::service-overall service))))
        (services::leave-server service server)
        (services::add-watcher service (services::make-watcher :call call :name ""))
        (is (zerop (count-watchers service)))
        (is (eq :not-serving (next-status watch)))
        (is (typep (caught (next-status watch)) 'grpc:unavailable))))))

(test watchers-within-the-image
  "Callbacks run where a status is set: they may read the status, set another one and leave. The
first status is right, and at the end each watcher gets the last one and ends."
  (with-log ()
    (with-health (server service wire)
      (let ((channel (grpc:server-channel server)) (statuses '()))
        (unwind-protect
             (let ((call (watch-health channel "lab.Bench")) (other (watch-health channel "")))
               (is (eq :serving (next-status other)))
               (grpc:on-message call
                                (lambda (response)
                                  (grpc:health-status service "lab.Bench")
                                  (push (health:health-check-response-status response) statuses)
                                  (case (length statuses)
                                    (2 (grpc:set-health-status service "lab.Bench" :unknown))
                                    (3 (grpc:cancel call)))))
               (eventually (= 1 (length statuses)))
               (grpc:set-health-status service "lab.Bench" :not-serving)
               (eventually (= 1 (count-watchers service)))
               (is (equal '(:serving :not-serving :unknown) (reverse statuses)))
               (is-true (grpc:stop-server server :drain 20))
               (is (eq :not-serving (next-status other)))
               (is (typep (caught (next-status other)) 'grpc:unavailable))
               (is (zerop (count-watchers service))))
          (grpc:close-channel channel))))
    (is (null (events-of :handler-error)))))

(test a-thread-that-is-ended-leaves-no-status-untold
  "Another thread has left its status to the thread that is sending to the watcher."
  (with-health (server service channel)
    (grpc:with-call (watch (watch-health channel ""))
      (is (eq :serving (next-status watch)))
      (let ((watcher (services::make-watcher :call (call-of-watcher service) :name "")) (calls 0))
        (with-replaced (('services::tell-status
                         (lambda (function watcher)
                           (when (= 1 (incf calls))
                             (services::tell-watcher watcher) ; as the other does
                             (throw 'ended :ended))
                           (funcall function watcher))))
          (is (eq :ended (catch 'ended (services::tell-watcher watcher))))
          (is (= 2 calls))
          (services::tell-watcher watcher)
          (is (= 3 calls)))))))

(defun probe-health (service path)
  "The status and the text of a handler of SERVICE for a GET of PATH."
  (let ((answer (funcall (exchange:http-handler-function (grpc:health-handler service))
                         (exchange-tests:request-for path))))
    (list (exchange:plain-answer-http-status answer)
          (octets-string (exchange::plain-answer-body answer)))))

(test health-over-plain-http
  "200 while the server or a service serves, 503 while it does not or drains, 404 for no service."
  (let* ((service (make-instance 'grpc:health-service))
         (server (grpc:start-server service :http (list (grpc:health-handler service)))))
    (is (equal '(200 "serving") (probe-health service "/healthz")))
    (is (equal '(200 "serving") (probe-health service "/healthz?service=grpc.health.v1.Health")))
    (is (equal '(404 "the service is not known") (probe-health service "/healthz?service=none")))
    (grpc:set-health-status service "" :not-serving)
    (is (equal '(503 "not serving") (probe-health service "/healthz")))
    (grpc:set-health-status service "" :unknown)
    (is (equal '(503 "unknown") (probe-health service "/healthz?service=")))
    (grpc:set-health-status service "" :serving)
    (is (equal '(200 "serving") (probe-health service "/healthz")))
    (grpc:stop-server server)
    (is (equal '(503 "draining") (probe-health service "/healthz")))))

(test the-lock-of-a-health-service-is-taken
  (let ((service (make-instance 'grpc:health-service)))
    (is (null (support:lockless (services::service-lock service)
                                `(grpc:health-status ,service "")
                                `(grpc:set-health-status ,service "" :serving)
                                `(server:note-server-stopping ,service nil)
                                `(services::map-watchers identity ,service nil)
                                `(services::add-watcher ,service nil)
                                `(services::remove-watcher ,service nil))))))
