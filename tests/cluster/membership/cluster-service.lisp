;;;; The service, as callers see it.

(in-package #:clgrpc.tests.cluster)

(test callers-join-renew-and-leave
  (with-store (store)
    (with-service (channel)
      (let* ((member (join channel "a" :labels '(("zone" . "1")) :lease-seconds 20))
             (generation (pb:member-generation member)))
        (is (= 20 (pb:member-lease-seconds member)))
        (let ((response (methods:members channel (pb:make-members-request) :timeout +patience+)))
          (is (equalp (vector member) (coerce (pb:members-response-members response)
                                              'simple-vector))))
        (is (= 20 (pb:renew-response-lease-seconds
                   (methods:renew channel (pb:make-renew-request :name "a"
                                                                 :generation generation)
                                  :timeout +patience+))))
        (signals grpc:failed-precondition
          (methods:renew channel (pb:make-renew-request :name "a" :generation (1- generation))
                         :timeout +patience+))
        (signals grpc:not-found
          (methods:renew channel (pb:make-renew-request :name "b" :generation generation)
                         :timeout +patience+))
        (signals grpc:already-exists (join channel "a" :if-taken :if-taken-refuse))
        (signals grpc:invalid-argument (join channel "a/b"))
        (signals grpc:invalid-argument (join channel "b" :lease-seconds 1))
        (signals grpc:invalid-argument (join channel "b" :lease-seconds -1))
        (is-false (leave channel "a" (1- generation)))
        (is-true (leave channel "a" generation))
        (is-false (leave channel "a" generation))))))

(test callers-join-while-there-is-room
  "A service admits no more members than its :max-members."
  (with-store (store)
    (with-service (channel :max-members 2)
      (join channel "a")
      (join channel "b")
      (signals grpc:resource-exhausted (join channel "c"))
      (finishes (join channel "b")))))

(test watchers-are-told
  "Watch tells the members, then each change once; from a revision on what came since, from this
node or another."
  (with-store (store)
    (with-service (channel)
      (multiple-value-bind (first revision) (join channel "a")
        (eventually (grpc:with-call (call (watch-members channel))
                      (equal '(:members "a") (next-told call))))
        (grpc:with-call (call (watch-members channel))
          (is (equal '(:members "a") (next-told call)))
          (let* ((second (join channel "b"))
                 (again (join channel "a")))
            (leave channel "b" (pb:member-generation second))
            (flet ((generation (member) (pb:member-generation member)))
              (let ((expected
                      `(((:change-kind-joined "b" ,(generation second)))
                        ((:change-kind-lost "a" ,(generation first))
                         (:change-kind-joined "a" ,(generation again)))
                        ((:change-kind-updated "b" ,(generation second)))
                        ((:change-kind-left "b" ,(generation second))))))
                (is (equal expected (loop repeat 4 collect (next-told call))))
                (grpc:with-call (later (watch-members channel (1+ revision)))
                  (is (equal expected (loop repeat 4 collect (next-told later)))))
                ;; a node that was not there then reads the store
                (with-service (other)
                  (grpc:with-call (later (watch-members other (1+ revision)))
                    (is (equal expected (loop repeat 4 collect (next-told later))))
                    (let ((third (join channel "c")))
                      (is (equal `((:change-kind-joined "c" ,(generation third)))
                                 (next-told later))))))))))))))

(test watchers-learn-of-compaction
  "Who asks for changes that are compacted is told, and begins anew."
  (with-store (store)
    (let ((revision (etcd:put *etcd* "x" "1")))
      (with-service (channel)
        (join channel "a"))
      (etcd:compact *etcd* (etcd:put *etcd* "x" "2"))
      (with-service (channel)
        (grpc:with-call (call (watch-members channel revision))
          (signals grpc:out-of-range (grpc:receive call)))
        (grpc:with-call (call (watch-members channel))
          (is (equal '(:members "a") (next-told call))))
        (grpc:with-call (call (watch-members channel -1))
          (signals grpc:invalid-argument (grpc:receive call)))))))

(test members-are-told-once-after-a-compaction
  "If changes are compacted between the members that a node has read and those that it would be
told, it reads them again, is told each change once, and nothing once it is closed."
  (with-memory ()
    (let* ((etcd *etcd*) (informer (cluster::make-informer etcd "default"))
           (told '()) (compactions 0))
      (cluster::add-listener informer (lambda (changes)
                                        (push (mapcar #'butlast (told-changes changes)) told)
                                        ;; between the two
                                        (when (<= (incf compactions) 2)
                                          (etcd:put etcd "x" "")
                                          (join-cluster etcd "default"
                                                        (member-of (format nil "b-~D" compactions))
                                                        :keep-alive nil)
                                          (etcd:compact etcd (etcd:put etcd "x" "")))))
      (join-cluster etcd "default" (member-of "a") :keep-alive nil)
      (unwind-protect
           (progn
             (cluster::follow-store informer)
             (eventually (= 3 (length told)))
             (join-cluster etcd "default" (member-of "c") :keep-alive nil)
             (eventually (= 4 (length told)))
             (is (equal '(((:joined "a")) ((:joined "b-1")) ((:joined "b-2")) ((:joined "c")))
                        (reverse told))))
        (cluster::close-informer informer))
      (join-cluster etcd "default" (member-of "d") :keep-alive nil)
      (is (= 4 (length told))))))

(test watchers-go
  "What watchers took is given back, and a server that stops does not wait for them."
  (with-store (store)
    (let* ((service (make-open-service))
           (informer (cluster::service-informer service))
           (server (grpc:start-server service)))
      (unwind-protect
           (grpc:with-channel (channel (grpc:server-address server))
             (let ((revision (nth-value 1 (join channel "a"))))
               (grpc:with-call (call (watch-members channel))
                 (next-told call)
                 (is (= 1 (length (cluster::informer-watchers informer)))))
               (eventually (null (cluster::informer-watchers informer)))
               ;; one with a catch up of its own, which waits for what is to come
               (grpc:with-call (call (watch-members channel 1))
                 (is (equal "a" (second (first (next-told call)))))
                 (is (= 1 (length (cluster::informer-watchers informer)))))
               (eventually (null (cluster::informer-watchers informer)))
               (eventually (zerop (cluster::informer-catch-ups informer)))
               (grpc:with-call (call (watch-members channel (1+ revision)))
                 (eventually (cluster::informer-watchers informer))
                 (is-true (grpc:stop-server server :drain +patience+))
                 (signals grpc:unavailable (grpc:receive call)))))
        (grpc:stop-server server :drain 0)
        (close-cluster-service service)))))

(test a-watch-that-begins-as-the-server-stops-ends
  "It comes when the other watchers have been dismissed, and the server does not wait for it."
  (with-store (store)
    (let* ((service (make-open-service))
           (server (grpc:start-server service)))
      (with-replaced (('cluster::check-revision (lambda (original &rest arguments)
                                                  (multiple-value-prog1 (apply original arguments)
                                                    (server:note-server-stopping service server)))))
        (unwind-protect
             (grpc:with-channel (channel (grpc:server-address server))
               (grpc:with-call (call (watch-members channel))
                 (eventually (grpc:call-status call))
                 (is (eq :unavailable (grpc:call-status call)))))
          (grpc:stop-server server :drain 0)
          (close-cluster-service service))))))

(defmacro with-service-here ((channel informer) &body body)
  "Evaluate BODY with CHANNEL, within the image, to a cluster service on *ETCD*, which has
INFORMER."
  (let ((service (gensym)))
    `(let* ((,service (make-cluster-service *etcd*))
            (,informer (cluster::service-informer ,service))
            (,channel (grpc:service-channel ,service)))
       (unwind-protect (progn ,@body)
         (grpc:close-channel ,channel)
         (close-cluster-service ,service)))))

(test catch-ups-end
  "Though no change comes, once all is told that the view does not remember; nothing is told twice."
  (with-memory ()
    (join-cluster *etcd* "default" (member-of "a") :keep-alive nil)
    (with-service-here (channel informer)
      (grpc:with-call (call (watch-members channel 1))
        (is (equal "a" (second (first (next-told call)))))
        (eventually (zerop (cluster::informer-catch-ups informer)))
        (let ((watcher (first (cluster::informer-watchers informer))))
          (is-false (cluster::watcher-catch-up watcher))
          ;; one that was given up tells nothing more
          (let ((next (cluster::watcher-next watcher)))
            (is (<= (cluster::view-first (cluster::informer-view informer)) next))
            (cluster::take-catch-up informer watcher '() (+ next 10))
            (is (= next (cluster::watcher-next watcher)))))
        (join-cluster *etcd* "default" (member-of "b") :keep-alive nil)
        (is (equal "b" (second (first (next-told call)))))))))

(test catch-ups-that-end-without-anything-to-tell
  (with-memory ()
    (dotimes (i 5) (etcd:put *etcd* "x" ""))
    (with-service-here (channel informer)
      (grpc:with-call (call (watch-members channel 1))
        (grpc:call-metadata call)
        (eventually (plusp (cluster::informer-catch-ups informer)))
        (eventually (zerop (cluster::informer-catch-ups informer)))
        (is-false (grpc:call-status call))
        (join-cluster *etcd* "default" (member-of "b") :keep-alive nil)
        (is (equal "b" (second (first (next-told call)))))))))

(test catch-ups-that-are-refused
  "The call ends on the thread that asks, as it may within the image."
  (with-memory ()
    (etcd:put *etcd* "x" "")
    (with-service-here (channel informer)
      (setf (cluster::informer-catch-ups informer) cluster::+most-catch-ups+)
      (grpc:with-call (call (watch-members channel 1))
        (signals grpc:resource-exhausted (grpc:receive call)))
      (eventually (null (cluster::informer-watchers informer)))
      (setf (cluster::informer-catch-ups informer) 0))))
