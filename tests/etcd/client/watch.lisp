;;;; Watches: every change once, in order, whatever breaks.

(in-package #:clgrpc.tests.etcd)

(defun told (change)
  (list (etcd:change-kind change) (etcd:entry-key (etcd:change-entry change))
        (etcd:entry-text (etcd:change-entry change))))

(store-test changes-are-told
  (with-store (store)
    (etcd:put *etcd* "a/0" "before")
    (let* ((heard '())
           (watch (etcd:watch *etcd* (lambda (changes revision)
                                       (push (list revision (mapcar #'told changes)) heard))
                              :prefix "a/" :previous t))
           (first (etcd:put *etcd* "a/1" "x")))
      (etcd:put *etcd* "b" "elsewhere")
      (etcd:transact *etcd* :then '((:put "a/2" "y") (:remove "a/1")))
      (eventually (= 2 (length heard)))
      (is (equal `((,first ((:put "a/1" "x")))
                   (,(+ 2 first) ((:put "a/2" "y") (:removal "a/1" ""))))
                 (reverse heard)))
      (is (= (+ 3 first) (etcd:watch-next-revision watch)))
      (etcd:cancel-watch watch)
      (is-false (etcd:watch-open-p watch))
      (etcd:put *etcd* "a/3" "z")
      (is (= 2 (length heard)))
      ;; from a revision on, and only some
      (let* ((texts '())
             (watch (etcd:watch *etcd* (fn (changes _revision)
                                         (dolist (change changes) (push (told change) texts)))
                                :key "a/1" :revision first :only :removals)))
        (eventually texts)
        (is (equal '((:removal "a/1" "")) texts))
        (etcd:cancel-watch watch)))))

(test watches-resume
  "While etcd is killed and comes back again and again each change that was acknowledged is told
once, in its order."
  (with-store (store)
    (let* ((revisions '()) (written '()) (stop nil)
           (watch (etcd:watch *etcd* (lambda (changes revision)
                                       (dolist (change changes)
                                         (declare (ignorable change))
                                         (push revision revisions)))
                              :prefix "n/"))
           (writer (in-thread
                     (etcd:with-etcd (etcd (store-address store) :timeout +patience+
                                           :backoff-maximum-seconds 0.2)
                       (loop for i from 0
                             until stop
                             do (handler-case
                                    (push (etcd:put etcd (format nil "n/~D" i) "x" :timeout 1)
                                          written)
                                  (etcd:etcd-error ())))))))
      (flet ((await-writes ()
               (is-true (wait-until (let ((before (length written)))
                                      (lambda () (< (+ 10 before) (length written))))))))
        (dotimes (i 3)
          (await-writes)
          (begin-store store))          ; which kills it before
        (await-writes))
      (setf stop t)
      (sb-thread:join-thread writer)
      (eventually (member (first written) revisions))
      (is-true (etcd:watch-open-p watch))
      (is (apply #'> revisions) "each once, in order")
      (is (null (set-difference written revisions))))))

(store-test compaction-during-a-break
  "A watch whose next change has been compacted says so, and ends."
  (with-store (store)
    (let* ((ended nil)
           (first (etcd:put *etcd* "a" "1")))
      (etcd:compact *etcd* (progn (etcd:put *etcd* "a" "2") (etcd:put *etcd* "a" "3")))
      (handler-case
          (progn (etcd:watch *etcd* (lambda (changes revision) (declare (ignore changes revision)))
                             :key "a" :revision first
                             :on-end (lambda (condition) (setf ended condition)))
                 (eventually ended))
        (etcd:compacted (condition) (setf ended condition)))
      (is (typep ended 'etcd:compacted))
      (is (= (+ 2 first) (etcd:compacted-revision ended))))))

(test compaction-while-etcd-cannot-be-reached
  "A watch whose next changes are made and compacted while etcd is elsewhere says so when it is
back."
  (with-store (store)
    (let* ((ended nil) (heard 0)
           (first (etcd:put *etcd* "a" "1"))
           (watch (etcd:watch *etcd* (fn (_changes _revision) (incf heard))
                              :key "a" :on-end (lambda (condition) (setf ended condition))))
           (port (store-port store)))
      (end-store store)
      (setf (store-port store) (free-port))
      (begin-store store)
      (etcd:with-etcd (etcd (store-address store) :timeout +patience+)
        (loop repeat 5 do (etcd:put etcd "a" "2" :timeout +patience+))
        (etcd:compact etcd (+ 4 first)))
      (end-store store)
      (setf (store-port store) port)
      (begin-store store)
      (eventually ended)
      (is (typep ended 'etcd:compacted))
      (is (= (+ 4 first) (etcd:compacted-revision ended)))
      (is (zerop heard))
      (is-false (etcd:watch-open-p watch)))))

(store-test watches-of-other-revisions
  "Revision 0 is from now on; one that is to come is waited for."
  (with-store (store)
    (let* ((first (etcd:put *etcd* "a" "1")) (now '()) (later '()))
      (flet ((note (function)
               (fn (_changes revision) (funcall function revision))))
        (etcd:watch *etcd* (note (lambda (revision) (push revision now))) :key "a" :revision 0)
        (let ((watch (etcd:watch *etcd* (note (lambda (revision) (push revision later)))
                                 :key "a" :revision (+ 3 first))))
          (loop for i from 2 to 5 do (etcd:put *etcd* "a" (format nil "~D" i)))
          (eventually (and (= 4 (length now)) (= 2 (length later))))
          (is (equal (loop for i from 1 to 4 collect (+ i first)) (reverse now)))
          (is (equal (list (+ 3 first) (+ 4 first)) (reverse later)))
          (is (= (+ 5 first) (etcd:watch-next-revision watch))))))))

(test large-responses-come-in-fragments
  "What one revision has changed is told at once, though it is more than etcd puts in one response."
  (with-store (store "--max-request-bytes" "262144")
    (let* ((first (etcd:put *etcd* "f/first" "1"))
           (value (make-array 60000 :element-type '(unsigned-byte 8) :initial-element 1))
           (fragments 0) (heard '()))
      (loop repeat 5
            do (etcd:transact *etcd* :then (loop for i below 4
                                                 collect `(:put ,(format nil "f/~D" i) ,value))))
      (etcd:compact *etcd* first)
      (with-replaced (('clgrpc.etcd::note-response
                       (lambda (function watch response)
                         (when (pb:watch-response-fragment response) (incf fragments))
                         (funcall function watch response))))
        (etcd:watch *etcd* (lambda (changes revision) (push (cons revision changes) heard))
                    :prefix "f/" :revision first)
        (eventually (= 6 (length heard))))
      (is (plusp fragments))
      (is (equal '(1 4 4 4 4 4) (mapcar #'length (mapcar #'rest (reverse heard)))))
      (is (equal (loop for i to 5 collect (+ i first)) (reverse (mapcar #'first heard)))))))

(store-test ten-thousand-keys
  "They are put, and removed at one revision, and each is told once; a mirror has them all."
  (with-store (store)
    (let ((told 0) (removed '()) (mirrored 0) (first (etcd:put *etcd* "k" "first")))
      (loop for i below 10000 by 100
            do (etcd:transact *etcd* :then (loop for j from i below (+ i 100)
                                                 collect `(:put ,(format nil "k/~5,'0D" j) "x"))))
      (etcd:watch *etcd* (fn (changes _revision)
                           (if (eq :put (etcd:change-kind (first changes)))
                               (incf told (length changes))
                               (push (length changes) removed)))
                  :prefix "k/" :revision first)
      (let ((mirror (etcd:mirror *etcd* (fn (kind items _revision)
                                          (if (eq :entries kind)
                                              (incf mirrored (length items))
                                              (decf mirrored (length items))))
                                 :prefix "k/")))
        (is (= 10000 mirrored))
        (is (= 10000 (etcd:remove-entries *etcd* :prefix "k/")))
        (eventually (and removed (zerop mirrored)))
        (is (= 10000 told))
        (is (equal '(10000) removed))
        (etcd:cancel-mirror mirror)))))

(store-test progress-is-asked-for
  (with-store (store)
    (let* ((heard '())
           (watch (etcd:watch *etcd* (fn (_changes revision) (push revision heard))
                              :key "a"))
           (last (progn (etcd:put *etcd* "a" "1") (etcd:put *etcd* "b" "1"))))
      (eventually heard)
      (is (= last (etcd:await-progress watch :timeout +patience+)))
      (is (= last (etcd:await-progress watch :timeout +patience+)))
      (etcd:cancel-watch watch)
      (signals etcd:unavailable (etcd:await-progress watch)))))

(test progress-is-asked-for-behind-the-watch
  "Whoever asks for progress while a watch goes on with a new stream waits until etcd was told what
to watch there."
  (with-stand-in (store other)
    (let ((watch (hear :key "a")) (asking nil) (early nil))
      (with-replaced (('clgrpc.etcd::creation
                       (lambda (function watch)
                         (setf asking (in-thread (clgrpc.etcd::ask-for-progress
                                                  watch (clgrpc.etcd::watch-call watch)
                                                  (loop:notice-end +patience+))))
                         (sleep 0.1)
                         (setf early (not (sb-thread:thread-alive-p asking)))
                         (funcall function watch))))
        (break-streams store)
        (eventually asking)
        (sb-thread:join-thread asking))
      (is-false early)
      (is-true (etcd:await-progress watch :timeout +patience+)))))

(test stores-that-have-gone-back
  "A watch of a store that has lost its data says so, and ends; it does not wait until the store has
as many revisions again."
  (with-store (store)
    (dotimes (i 5) (etcd:put *etcd* "a" "1"))
    (let* ((ended nil)
           (watch (etcd:watch *etcd* (lambda (changes revision) (declare (ignore changes revision)))
                              :key "a" :on-end (lambda (condition) (setf ended condition)))))
      (support:kill-program (store-program store))
      (uiop:delete-directory-tree (pathname (store-folder store)) :validate t)
      (begin-store store)
      (eventually ended)
      (is (typep ended 'etcd:future-revision))
      (is-false (etcd:watch-open-p watch)))))

(store-test watches-that-end
  "By an error in their function, whatever it is: one of the function's own calls is not taken for
the stream's, by which changes would be passed by."
  (with-store (store)
    (dolist (condition (list (make-condition 'simple-error :format-control "This is a bug.")
                             (make-condition 'etcd:unavailable :text "not the stream's")
                             (make-condition 'etcd:compacted :text "nor this")
                             (make-condition 'status:rpc-error :status :unavailable)))
      (let* ((ended nil)
             (watch (etcd:watch *etcd* (fn (_changes _revision) (error condition))
                                :key "a" :on-end (lambda (condition) (setf ended condition)))))
        (etcd:put *etcd* "a" "1")
        (eventually ended)
        (is (eq condition ended))
        (is-false (etcd:watch-open-p watch)))))
  (etcd:with-etcd (etcd (format nil "127.0.0.1:~D" (free-port)))
    (signals etcd:unavailable (etcd:watch etcd #'list :key "a" :timeout 0.3))))

(defun hear (&rest options)
  "Begin a watch with OPTIONS. Return it, a function that returns the texts of the puts that it has
told, and one that returns what has ended it, or nil."
  (let ((heard '()) (ended nil))
    (values (apply #'etcd:watch *etcd*
                   (fn (changes _revision)
                     (dolist (change changes)
                       (push (etcd:entry-text (etcd:change-entry change)) heard)))
                   :on-end (lambda (condition) (setf ended condition))
                   options)
            (lambda () (reverse heard))
            (lambda () ended))))

(test watches-that-etcd-has-begun-and-ended
  "A watch that etcd has begun is returned though it has ended at once, and ON-END is told why; one
that it has not begun signals, and ON-END is not called."
  (with-stand-in (store other)
    (dotimes (i 3) (etcd:put other "a" "1"))
    (etcd:compact other 4)
    (dotimes (i 20)
      (multiple-value-bind (watch heard ended) (hear :key "a" :revision 2)
        (is-true (wait-until ended))
        (is (typep (funcall ended) 'etcd:compacted))
        (is (null (funcall heard)))
        (is-false (etcd:watch-open-p watch))))
    (let ((ended nil))
      (flet ((watch (&rest options)
               (apply #'etcd:watch *etcd* #'list :on-end (lambda (condition) (setf ended condition))
                                                 options)))
        (signals etcd:invalid-request (watch :from "b" :to "a"))
        (with-hook (store name call next)
          (if (eq :watch name) (silent-call call) (next)))
        (signals etcd:unavailable (watch :key "a" :timeout 0.1))
        (is (null ended))))))

(store-test removals-at-the-compacted-revision
  "etcd passes by a removal at the revision up to which it is compacted. A watch that goes on there
says that it is compacted."
  (with-store (store)
    (etcd:put *etcd* "a" "1")
    (let* ((known (etcd:put *etcd* "b" "1"))
           (removed (nth-value 1 (etcd:remove-entry *etcd* "a"))))
      (etcd:compact *etcd* removed :physical t)
      (multiple-value-bind (watch heard ended) (hear :key "a" :after known)
        (declare (ignore watch heard))
        (is-true (wait-until ended))
        (is (typep (funcall ended) 'etcd:compacted)))
      (is-true (etcd:watch-open-p (hear :key "a" :after removed))))))

(test watches-go-on-after-whatever-passes
  "A stream that ends with any of these statuses is opened again."
  (with-stand-in (store other)
    (multiple-value-bind (watch heard ended) (hear :key "a")
      (loop for status in '(:unavailable :internal :unknown :cancelled :deadline-exceeded)
            for text in '("1" "2" "3" "4" "5")
            do (dolist (call (shiftf (stand-in-streams store) '()))
                 (rpc:finish call :status status :message "broken by the test"))
               (etcd:put other "a" text))
      (eventually (= 5 (length (funcall heard))))
      (is (equal '("1" "2" "3" "4" "5") (funcall heard)))
      (is (null (funcall ended)))
      (is-true (etcd:watch-open-p watch)))))

(test a-watch-that-is-cancelled-in-its-function-tells-nothing-more
  (with-stand-in (store other)
    (dotimes (i 3) (etcd:put other "a" "1"))
    (let* ((heard 0) (watch nil) (gate (sb-thread:make-semaphore)))
      ;; the three are told in one response
      (setf watch (etcd:watch *etcd* (fn (_changes _revision)
                                       (sb-thread:wait-on-semaphore gate)
                                       (incf heard)
                                       (etcd:cancel-watch watch))
                              :key "a" :revision 2))
      (sb-thread:signal-semaphore gate 3)
      (eventually (= 1 heard))
      (etcd:cancel-watch watch)         ; waits for what it does
      (is (= 1 heard)))))

(test a-function-that-ends-badly-ends-its-watch
  "ON-END is called whatever the function has signalled, and may fail itself."
  (with-stand-in (store other)
    (dolist (condition (list (make-condition 'serious-condition)
                             (make-condition 'support:unprintable)
                             (make-condition 'simple-error :format-control "This is a bug.")))
      (let* ((ended nil) (base:*log-function* nil)
             (watch (etcd:watch *etcd* (fn (_changes _revision) (error condition))
                                :key "a" :on-end (lambda (condition)
                                                   (setf ended condition)
                                                   (error "This is another bug.")))))
        (etcd:put other "a" "1")
        (eventually ended)
        (is (eq condition ended))
        (is-false (etcd:watch-open-p watch))))))

(test a-store-that-was-replaced-before-its-watch
  "A watch after what was read in another store, which had the same revisions, is not begun: it would
pass by what has been put there."
  (with-stand-in (store other)
    (etcd:put *etcd* "a" "1")
    (multiple-value-bind (mark revision) (etcd:fetch *etcd* "a")
      (etcd:cancel-watch (hear :prefix "" :after revision :mark mark))
      (replace-store store (lambda (etcd)
                             (etcd:put etcd "b" "1")
                             (etcd:put etcd "a" "1")))
      (signals etcd:future-revision (hear :prefix "" :after revision :mark mark)))))

(test another-store-is-noticed
  "A store that has lost its data, and has as many revisions again when the watch comes back, is
noticed by what it was told last; by the number or the term of its cluster in any case."
  (with-stand-in (store other)
    (multiple-value-bind (watch heard ended) (hear :prefix "")
      (etcd:put other "a" "1")
      (is-true (wait-until heard))
      ;; it goes on with the same
      (break-streams store)
      (etcd:put other "a" "2")
      (eventually (= 2 (length (funcall heard))))
      (is (null (funcall ended)))
      ;; what was told last is compacted, since others have changed much, which is no reason to end
      (etcd:put other "b" "3")
      (eventually (= 3 (length (funcall heard))))
      (setf (clgrpc.etcd::watch-mark watch) (etcd:fetch other "a" :revision 2))
      (etcd:compact other 4)
      (break-streams store)
      (etcd:put other "b" "4")
      (eventually (= 4 (length (funcall heard))))
      (is (null (funcall ended)))
      ;; another one, which has come further
      (replace-store store (lambda (etcd)
                             (dotimes (i 9) (etcd:put etcd "b" (format nil "~D" i)))))
      (is-true (wait-until ended))
      (is (typep (funcall ended) 'etcd:future-revision))
      (is (= 4 (length (funcall heard))))))
  (etcd:with-etcd (etcd "127.0.0.1:1")
    (let ((watch (clgrpc.etcd::%make-watch :etcd etcd :start (octets-of 97) :end (octets-of 98)
                                           :function #'list :seen 7 :term 3 :cluster 5)))
      (flet ((gone-p (&rest arguments)
               (handler-case
                   (progn (clgrpc.etcd::check-header watch (apply #'pb:make-response-header
                                                                  arguments))
                          nil)
                 (etcd:future-revision () t))))
        (is-false (gone-p :revision 7 :raft-term 3 :cluster-id 5))
        (is-false (gone-p :revision 8 :raft-term 4 :cluster-id 5))
        (is-true (gone-p :revision 6 :raft-term 3 :cluster-id 5))
        (is-true (gone-p :revision 8 :raft-term 2 :cluster-id 5))
        (is-true (gone-p :revision 8 :raft-term 3 :cluster-id 6))))))

(test watches-after-a-revision
  "The store is to have the revision that a watch is to go on after; one that is to come is waited
for."
  (with-stand-in (store other)
    (let ((first (etcd:put other "a" "1")))
      (etcd:put other "a" "2")
      (multiple-value-bind (watch heard) (hear :key "a" :after first)
        (is-true (wait-until heard))
        (is (equal '("2") (funcall heard)))
        (is (= (+ 2 first) (etcd:watch-next-revision watch)))
        (signals etcd:future-revision (hear :key "a" :after (+ 100 first)))
        (is-true (etcd:watch-open-p (hear :key "a" :revision (+ 100 first))))
        (signals misuse (hear :key "a" :after first :revision first))))))

(test watches-share-a-stream
  "However many watches a client has, one stream tells them; each hears its own changes, in their
order, also after a break. It ends with the last watch."
  (with-stand-in (store other)
    (let* ((heard (make-array 100 :initial-element '()))
           (watches (loop for i below 100
                          collect (let ((i i))
                                    (etcd:watch *etcd*
                                                (fn (changes _revision)
                                                  (dolist (change changes)
                                                    (push (etcd:entry-text
                                                           (etcd:change-entry change))
                                                          (aref heard i))))
                                                :key (format nil "w/~D" i))))))
      (flet ((put-all (text)
               (dotimes (i 100) (etcd:put other (format nil "w/~D" i) (format nil "~A~D" text i))))
             (heard-p (&rest texts)
               (wait-until (lambda ()
                             (loop for i below 100
                                   always (equal (loop for text in texts
                                                       collect (format nil "~A~D" text i))
                                                 (reverse (aref heard i))))))))
        (is (= 1 (length (stand-in-streams store))))
        (put-all "a")
        (put-all "b")
        (is-true (heard-p "a" "b"))
        (break-streams store)
        (put-all "c")
        (is-true (heard-p "a" "b" "c"))
        (is (= 1 (length (stand-in-streams store))))
        (etcd:cancel-watch (first watches))
        (put-all "d")
        (eventually (= 4 (length (aref heard 99))))
        (is (= 3 (length (aref heard 0))))
        (mapc #'etcd:cancel-watch watches)
        (eventually (rpc:call-status (first (stand-in-streams store))))))))

(test a-slow-watch-holds-up-no-other
  "What it has not told waits; when that is too much it leaves the stream, and tells the rest once
it can."
  (with-stand-in (store other)
    (let* ((gate (sb-thread:make-semaphore)) (slow 0) (quick 0)
           (value (make-array 1000000 :element-type '(unsigned-byte 8)))
           (watch (etcd:watch *etcd* (fn (changes _revision)
                                       (when (zerop slow)
                                         (sb-thread:wait-on-semaphore gate :timeout +patience+))
                                       (incf slow (length changes)))
                              :key "a")))
      (etcd:watch *etcd* (fn (changes _revision) (incf quick (length changes)))
                  :key "a")
      (dotimes (i 30) (etcd:put other "a" value))
      (eventually (= 30 quick))
      (is (= 0 slow))
      (is (> 20000000 (clgrpc.etcd::watch-waiting-octets watch)))
      (sb-thread:signal-semaphore gate)
      (eventually (= 30 slow)))))

(test a-watch-that-etcd-refuses-is-no-other
  "Of watches on one stream the one that is refused ends, and the others are told."
  (with-stand-in (store other)
    (multiple-value-bind (watch heard) (hear :key "a")
      (signals etcd:invalid-request (hear :from "b" :to "a"))
      (etcd:put other "a" "1")
      (is-true (wait-until heard))
      (is-true (etcd:watch-open-p watch)))))

(test progress-is-asked-for-again
  "The stream breaks while its progress is asked for, and progress comes from one that is behind."
  (with-stand-in (store other)
    (let* ((watch (hear :key "a")) (last (etcd:put other "b" "1")))
      (break-streams store)
      (is (<= last (etcd:await-progress watch :revision last :timeout +patience+)))
      (signals etcd:unavailable
        (etcd:await-progress watch :revision (+ 100 last) :timeout 0.6))
      (let ((waiting (sb-thread:make-thread
                      (lambda (etcd-watch)
                        (etcd:await-progress etcd-watch :revision (+ 3 last) :timeout +patience+))
                      :arguments (list watch))))
        (dotimes (i 3)
          (break-streams store)
          (etcd:put other "b" "2"))
        (is (<= (+ 3 last) (sb-thread:join-thread waiting)))))))

(defun response (revision &rest arguments &key changes &allow-other-keys)
  "A WatchResponse at REVISION with CHANGES, revisions of puts."
  (apply #'pb:make-watch-response
         :header (pb:make-response-header :revision revision)
         :events (loop for changed in changes
                       collect (mvccpb:make-event
                                :type :put
                                :kv (mvccpb:make-key-value :key (octets-of 97)
                                                           :mod-revision changed)))
         (alexandria:remove-from-plist arguments :changes)))

(test what-responses-mean
  "Which revision is next, and that nothing is told twice."
  (etcd:with-etcd (etcd "127.0.0.1:1")
    (let ((watch (clgrpc.etcd::%make-watch :etcd etcd :start (octets-of 97) :end (octets-of 98)
                                           :function #'list)))
      (flet ((take (&rest arguments)
               (list (mapcar (lambda (change) (etcd:entry-changed (etcd:change-entry change)))
                             (clgrpc.etcd::note-response watch (apply #'response arguments)))
                     (etcd:watch-next-revision watch))))
        (is (equal '(nil 8) (take 7 :created t)))
        ;; the store may be further than what is told
        (is (equal '((8 8 9) 10) (take 20 :changes '(8 8 9))))
        ;; a new stream, which begins with what is known
        (is (equal '(nil 10) (take 20 :created t)))
        (is (equal '((10 12) 13) (take 20 :changes '(9 10 12))))
        (is (equal '(nil 13) (take 20 :changes '(12))))
        ;; nothing up to 30
        (is (equal '(nil 31) (take 30)))
        ;; progress that was asked for says nothing of where to go on
        (is (equal '(nil 31) (take 35 :watch-id -1)))
        ;; a revision is told as a whole, also if it comes in fragments, and no later than that
        (is (equal '(nil 31) (take 40 :changes '(31) :fragment t)))
        (is (equal '((31 31) 32) (take 40 :changes '(31 32) :fragment t)))
        (is (equal '(nil 32) (take 40 :changes '(32 32) :fragment t)))
        (is (= 3 (length (clgrpc.etcd::watch-fragments watch))) "no more is kept")
        (let ((fragments (clgrpc.etcd::watch-fragments watch)))
          (with-replaced (('clgrpc.etcd::most-fragment-octets (constantly 1005)))
            (take 40 :changes '(32 32) :fragment t)
            (signals etcd:invalid-request (take 40 :changes '(32) :fragment t)))
          (clgrpc.etcd::keep-fragments watch fragments))
        (let ((other (clgrpc.etcd::%make-watch :etcd etcd :start (octets-of 97)
                                               :end (octets-of 98) :function #'list)))
          (with-replaced (('clgrpc.etcd::most-fragment-octets (constantly 1005)))
            (signals etcd:invalid-request ; all watches of the client together
              (clgrpc.etcd::keep-fragments other (clgrpc.etcd::watch-fragments watch)))
            (is (null (clgrpc.etcd::watch-fragments other)))
            (clgrpc.etcd::keep-fragments other (rest (clgrpc.etcd::watch-fragments watch)))
            (clgrpc.etcd::end-watch other nil)
            (is (= (clgrpc.etcd::watch-fragment-octets watch)
                   (clgrpc.etcd::etcd-fragment-octets etcd))
                "the end of a watch gives back what it has")))
        (is (equal '((32 32 32 33) 34) (take 40 :changes '(33))))
        (is (zerop (clgrpc.etcd::etcd-fragment-octets etcd)))
        (signals etcd:compacted (take 40 :canceled t :compact-revision 35))
        (signals etcd:unavailable (take 40 :canceled t :cancel-reason "etcdserver: no leader"))
        (signals etcd:access-denied (take 40 :canceled t :cancel-reason
                                          "rpc error: etcdserver: permission denied"))
        (signals etcd:invalid-request (take 40 :canceled t :cancel-reason
                                            "mvcc: watcher range is empty"))))))

(test changes-of-unknown-kinds
  "A change of a kind without a name ends the stream with an error of etcd's, not of ours."
  (signals etcd:unavailable (etcd::change-of (mvccpb:make-event :type 7)))
  (is (eq :unknown (getf (etcd::permission-plist (authpb:make-permission :perm-type 7)) :access))))

(test wakes-do-not-shorten-pauses
  "A watch that pauses after an answer without sense asks for no new one when its job is woken."
  (with-stand-in (store other)
    (with-hook (store name call next)
      (rpc:on-message
       call (lambda (request)
              (let ((id (pb:watch-create-request-watch-id
                         (pb:watch-request-create-request request))))
                (rpc:send call (pb:make-watch-response :watch-id id :created t))
                (rpc:send call (pb:make-watch-response :watch-id id
                                                       :events (list (mvccpb:make-event)))))))
      call)
    (with-replaced (('loop:next-pause (constantly 1000)))
      (let* ((watch (etcd:watch *etcd* #'list :key "a"))
             (job (clgrpc.etcd::watch-job watch)))
        (flet ((idle-p () (not (clgrpc.loop::job-running job))))
          (eventually (and (clgrpc.etcd::watch-failure watch) (idle-p)))
          (loop:wake-job job)
          (eventually (idle-p))
          (is (= 1 (length (stand-in-streams store)))))
        (etcd:cancel-watch watch)))))
