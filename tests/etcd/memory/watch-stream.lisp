;;;; Streams of watches.

(in-package #:clgrpc.tests.memory)

(defun create (call &rest arguments)
  (rpc:send call (pb:make-watch-request
                  :create-request (apply #'pb:make-watch-create-request
                                         (loop for (name value) on arguments by #'cddr
                                               collect name
                                               collect (if (stringp value)
                                                           (string-octets value)
                                                           value))))))

(defun heard (response)
  "What RESPONSE tells: its number and its events, or what it says besides."
  (list* (pb:watch-response-watch-id response)
         (cond ((plusp (pb:watch-response-compact-revision response))
                (list :compacted (pb:watch-response-compact-revision response)))
               ((plusp (length (pb:watch-response-cancel-reason response)))
                (list :refused (pb:watch-response-cancel-reason response)))
               ((pb:watch-response-canceled response) (list :canceled))
               ((pb:watch-response-created response) (list :created))
               (t (map 'list (lambda (event)
                               (list (mvccpb:event-type event)
                                     (octets-string (mvccpb:key-value-key
                                                     (mvccpb:event-kv event)))
                                     (mvccpb:key-value-mod-revision (mvccpb:event-kv event))))
                       (pb:watch-response-events response))))))

(defmacro with-watching ((call) &body body)
  "Evaluate BODY with CALL a stream of watches at *ETCD*."
  `(rpc:with-call (,call (watches:watch (etcd:etcd-channel *etcd*) :open :timeout 30))
     ,@body))

(test many-watches-share-a-stream
  (with-engine (engine)
    (with-watching (call)
      (flet ((next () (heard (rpc:receive call))))
        (create call :key "a")
        (is (equal '(0 :created) (next)))
        (create call :key "a" :range-end "c" :filters '(:noput) :watch-id 7)
        (is (equal '(7 :created) (next)))
        (create call :key "a" :watch-id 7)
        (is (equal '(-1 :refused "mvcc: duplicate watch ID provided on the WatchStream") (next)))
        (create call :key "c" :range-end "b")
        (is (equal '(-1 :refused "mvcc: watcher range is empty") (next)))
        (create call)                   ; the key of one zero octet
        (is (equal '(1 :created) (next)))
        (etcd:put *etcd* "a" "1")
        (is (equal '(0 (:put "a" 2)) (next)))
        (etcd:put *etcd* "b" "1")
        (etcd:remove-entries *etcd* :prefix "")
        (is (equal '((0 (:delete "a" 4)) (7 (:delete "a" 4) (:delete "b" 4)))
                   (sort (list (next) (next)) #'< :key #'first)))
        (rpc:send call (pb:make-watch-request
                        :cancel-request (pb:make-watch-cancel-request :watch-id 0)))
        (is (equal '(0 :canceled) (next)))
        (rpc:send call (pb:make-watch-request
                        :cancel-request (pb:make-watch-cancel-request :watch-id 0)))
        (rpc:send call (pb:make-watch-request
                        :progress-request (pb:make-watch-progress-request)))
        (let ((response (rpc:receive call)))
          (is (equal '(-1) (heard response)))
          (is (= 4 (pb:response-header-revision (pb:watch-response-header response)))))
        (etcd:put *etcd* "a" "2")
        (etcd:remove-entry *etcd* "a")
        (is (equal '(7 (:delete "a" 6)) (next)))))))

(test watches-of-the-past
  "A watch tells what was since its revision, then what comes; what is compacted it cannot tell."
  (with-engine (engine)
    (dotimes (i 2500) (etcd:put *etcd* "a" "x"))
    (with-watching (call)
      (create call :key "a" :start-revision 2)
      (is (equal '(0 :created) (heard (rpc:receive call))))
      (etcd:put *etcd* "a" "x")
      (is (equal (loop for i from 2 to 2502 collect i)
                 (loop with told = '()
                       until (= 2501 (length told))
                       do (let ((events (rest (heard (rpc:receive call)))))
                            (is (<= (length events) memory::+most-revisions+))
                            (setf told (append told (mapcar #'third events))))
                       finally (return told)))))
    (etcd:compact *etcd* 100)
    (with-watching (call)
      (create call :key "a" :start-revision 99)
      (is (equal '(0 :created) (heard (rpc:receive call))))
      (is (equal '(0 :compacted 100) (heard (rpc:receive call))))
      (create call :key "a" :start-revision 2502)
      (is (equal '(1 :created) (heard (rpc:receive call))))
      (is (equal '(1 (:put "a" 2502)) (heard (rpc:receive call))))
      ;; the future
      (create call :key "b" :start-revision 2505)
      (is (equal '(2 :created) (heard (rpc:receive call))))
      (dotimes (i 3) (etcd:put *etcd* "b" "x"))
      (is (equal '(2 (:put "b" 2505)) (heard (rpc:receive call)))))))

(test previous-entries-are-told
  (with-engine (engine)
    (let ((first (etcd:put *etcd* "a" "1")))
      (etcd:put *etcd* "a" "2")
      (etcd:remove-entry *etcd* "a")
      (flet ((previous (from)
               (with-watching (call)
                 (create call :key "a" :start-revision from :prev-kv t)
                 (rpc:receive call)
                 (map 'list (lambda (event)
                              (let ((previous (mvccpb:event-prev-kv event)))
                                (and previous
                                     (octets-string (mvccpb:key-value-value previous)))))
                      (pb:watch-response-events (rpc:receive call))))))
        (is (equal '(nil "1" "2") (previous first)))
        (etcd:compact *etcd* (1+ first))
        (is (equal '(nil "2") (previous (1+ first))))))))

(test slow-watchers
  "One who does not read holds nobody up, and nothing is kept for him: he gets what is still there,
or is told that it is compacted."
  (with-engine (engine :max-revisions 100)
    (with-watching (call)
      (create call :key "a" :progress-notify t)
      (rpc:receive call)
      (dotimes (i 500)
        (etcd:put *etcd* "a" (make-string 10000 :initial-element #\x)))
      (let ((revisions '()) (compacted nil))
        (loop for told = (heard (rpc:receive call))
              do (if (eq :compacted (second told))
                     (setf compacted (third told))
                     (setf revisions (append revisions (mapcar #'third (rest told)))))
              until (or compacted (= 501 (or (first (last revisions)) 0))))
        (is-true compacted)
        (is (equal (loop for i from 2 repeat (length revisions) collect i) revisions))))))

(test progress-is-told
  (with-engine (engine :progress-seconds 0.2)
    (with-watching (call)
      (create call :key "a" :progress-notify t)
      (rpc:receive call)
      (etcd:put *etcd* "b" "x")
      (let ((response (rpc:receive call)))
        (is (equal '(0) (heard response)))
        (is (= 2 (pb:response-header-revision (pb:watch-response-header response))))))))

(test progress-covers-what-was-told
  "A request for progress is answered behind the changes that the answer covers, also if there was
no room for these at first; and at once if nothing is watched."
  (with-engine (engine)
    (dotimes (i 1000) (etcd:put *etcd* "a" (make-string 10000 :initial-element #\x)))
    (flet ((ask (call)
             (rpc:send call (pb:make-watch-request
                             :progress-request (pb:make-watch-progress-request)))))
      (with-watching (call)
        (create call :key "a" :start-revision 2)
        (ask call)
        (is (equal '(0 :created) (heard (rpc:receive call))))
        (loop with told = 1
              for response = (rpc:receive call)
              for (number . changes) = (heard response)
              until (= -1 number)
              do (setf told (third (first (last changes))))
              finally (is (= 1001 told))
                      (is (= told (pb:response-header-revision
                                   (pb:watch-response-header response))))))
      (with-watching (call)
        (ask call)
        (is (equal '(-1) (heard (rpc:receive call))))))))

(test streams-of-watches-have-limits
  "A stream may have another watch if it has fewer than are free, of all streams; what has ended
makes its place free. And whoever leaves answers unread can send no more requests."
  (with-engine (engine :max-watches 5)
    (flet ((made-p (call)
             (create call :key "a")
             (let ((heard (heard (rpc:receive call))))
               (unless (eq :created (second heard))
                 (is (equal '(-1 :refused "etcdserver: too many watches") heard)))
               (eq :created (second heard)))))
      (with-watching (call)
        (is (equal '(t t t nil) (loop repeat 4 collect (made-p call))))
        (with-watching (other)
          (is (equal '(t nil) (loop repeat 2 collect (made-p other)))))
        (eventually (= 3 (memory::tree-size (memory::engine-watches engine))))
        (with-watching (other)
          (is-true (made-p other)))
        (create call :key (make-string (1+ memory::+longest-watched-key+) :initial-element #\a))
        (is (equal '(-1 :refused "etcdserver: request is too large") (heard (rpc:receive call))))
        (let ((sent (loop while (rpc:try-send call (pb:make-watch-request
                                                    :progress-request
                                                    (pb:make-watch-progress-request)))
                          count t)))
          (is (< 100 sent 100000))
          (is-true (loop repeat sent
                         always (equal '(-1) (heard (rpc:receive call))))))))))

(defun remove-at-once (count value-octets)
  "Put COUNT keys below a/ with values of VALUE-OCTETS, and remove them all at one revision, which
is returned."
  (dotimes (i count)
    (etcd:put *etcd* (format nil "a/~5,'0D" i) (make-string value-octets :initial-element #\x)))
  (etcd:remove-entries *etcd* :prefix "a/")
  (1+ (1+ count)))

(test large-revisions-are-told-in-fragments
  "What is asked for in fragments is told so, all but the last marked; else in one response, unless
that would be very large."
  (flet ((told (count value-octets &rest arguments)
           (with-engine (engine)
             (let ((revision (remove-at-once count value-octets)))
               (with-watching (call)
                 (apply #'create call :key "a/" :range-end "a0" :start-revision revision
                                      :prev-kv t arguments)
                 (is (equal '(0 :created) (heard (rpc:receive call))))
                 (loop for response = (rpc:receive call)
                       for more = (pb:watch-response-fragment response)
                       collect (list (rest (heard response)) more)
                       while more))))))
    (let ((fragments (told 400 10000 :fragment t)))
      (is (= 4 (length fragments)))
      (is (equal (loop for i below 400
                       collect (list :delete (format nil "a/~5,'0D" i) 402))
                 (mapcan #'first fragments))))
    (is (equal '(400) (mapcar (lambda (told) (length (first told))) (told 400 10000))))
    (is (equal '(((:refused "etcdserver: a revision is too large for one response")
                  nil))
               (told 200 100000)))))

(test long-histories-are-looked-at-in-parts
  "A thread that has other things to do looks at so many changes, though none of them is told."
  (with-engine (engine)
    (dotimes (i 300)
      (etcd:transact *etcd* :then (loop for j below 20 collect `(:put ,(format nil "b/~D" j) "x"))))
    (with-watching (call)
      (create call :key "a")
      (is (equal '(0 :created) (heard (rpc:receive call))))
      (let* ((watching (first (alexandria:hash-table-keys (memory::engine-listeners engine))))
             (watch (memory::find-watch watching 0)))
        (eventually (memory::watch-caught-up watch))
        ;; so the engine's thread leaves it to this one
        (eventually (memory::begin-advancing watching))
        (memory::with-engine (engine)
          (setf (memory::watch-next watch) 2)
          (memory::make-ready watch))
        (is (equal '(47 47 47 47 47 47 18)
                   (loop for before = (memory::watch-next watch)
                         for sent = (memory::advance-once watching 1000)
                         collect (- (memory::watch-next watch) before)
                         until (eq :all sent)
                         do (is (eq :some sent)))))
        (setf (memory::watching-state watching) :idle))
      ;; and by whoever is there
      (etcd:put *etcd* "a" "x")
      (create call :key "a" :start-revision 2)
      (is (equal '((0 (:put "a" 302)) (1 (:put "a" 302)) (1 :created))
                 (sort (loop repeat 3 collect (heard (rpc:receive call)))
                       #'string< :key #'princ-to-string))))))

(test a-cancelled-watch-is-gone
  "Its place is free. It sends nothing more, though it had more changes to send than its client has
read."
  (with-engine (engine :max-watches 5)
    (flet ((cancel (call number)
             (rpc:send call (pb:make-watch-request
                             :cancel-request (pb:make-watch-cancel-request :watch-id number)))))
      (with-watching (call)
        (is-true (loop repeat 20
                       do (create call :key "a" :watch-id 7)
                       always (equal '(7 :created) (heard (rpc:receive call)))
                       do (cancel call 7)
                       always (equal '(7 :canceled) (heard (rpc:receive call))))))
      (dotimes (i 1000) (etcd:put *etcd* "a" (make-string 10000 :initial-element #\x)))
      (with-watching (call)
        (create call :key "a" :start-revision 2 :watch-id 7)
        (cancel call 7)
        (loop until (equal '(7 :canceled) (heard (rpc:receive call))))
        (rpc:send call (pb:make-watch-request
                        :progress-request (pb:make-watch-progress-request)))
        (let ((response (rpc:receive call)))
          (is (equal '(-1) (heard response)))
          (is (= 1001 (pb:response-header-revision (pb:watch-response-header response)))))))))

(test errors-of-a-watch-are-logged
  "They end its call."
  (with-engine (engine)
    (with-watching (call)
      (with-logged (events :memory-watch-error)
        (with-replaced (('memory::advance-once (lambda (&rest arguments)
                                                 (declare (ignore arguments))
                                                 (error "broken"))))
          (create call :key "a")
          (signals error (rpc:receive call)))
        (is (eq :error (first (first (events)))))))))
