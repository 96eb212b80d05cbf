;;;; Listeners and their watches: whom a change concerns, and who calls them.

(in-package #:clgrpc.tests.memory)

(defstruct (ear (:include memory::listener)) "A listener of tests.")

(defun watch-of (start end serial)
  (memory::make-watch :key (memory::place-of-range start serial) :start start :end end
                      :listener (make-ear)))

(defun octets-below (random most)
  "Some three octets at most, each below MOST."
  (let ((octets (base:make-octets (random 4 random))))
    (map-into octets (lambda () (random most random)))))

(test ranges-around-a-key
  "Of any ranges a tree finds those that contain a key, also if they begin at the same one, with or
without an end, while others come and go."
  (let ((random (sb-ext:seed-random-state 1)) (tree nil) (all '()))
    (dotimes (i 2000)
      (if (or (null all) (plusp (random 3 random)))
          (let* ((start (octets-below random 4))
                 (end (octets-below random 4))
                 (watch (watch-of start (if (memory::before-p start end) end nil) i)))
            (push watch all)
            (setf tree (memory::tree-with tree watch)))
          (let ((watch (nth (random (length all) random) all)))
            (setf all (remove watch all)
                  tree (memory::tree-without tree (memory::watch-key watch)))))
      (let ((key (octets-below random 4)) (found '()))
        (memory::map-around (lambda (watch) (push watch found)) tree key)
        (unless (alexandria:set-equal
                 found
                 (remove-if-not (lambda (watch)
                                  (and (not (memory::before-p key (memory::watch-start watch)))
                                       (or (null (memory::watch-end watch))
                                           (memory::before-p key (memory::watch-end watch)))))
                                all))
          (fail "around ~A: ~A" key found))))
    (is (= (length all) (memory::tree-size tree)))
    (is-true (balanced-p tree))))

(defun add-ear (engine key function)
  "Have FUNCTION called, once for each news, when there is something new at KEY of ENGINE."
  (let* ((ear (make-ear))
         (start (string-octets key))
         (watch (memory::make-watch :key (memory::place-of-range start (memory::next-serial engine))
                                    :start start
                                    :end (concatenate 'base:octets start '(0))
                                    :next 2 :caught-up t :listener ear)))
    (setf (ear-function ear)
          (lambda ()
            (when (memory::with-engine (engine)
                    (prog1 (base:dequeue (ear-ready ear))
                      (setf (memory::watch-caught-up watch) t)))
              (funcall function))))
    (memory::with-engine (engine) (memory::add-watch engine watch))
    (memory::add-listener engine ear)))

(test changes-call-whom-they-concern
  "A Put calls the listeners whose watches it concerns, some of them itself, the others by the
engine's thread; nobody else is called."
  (with-engine (engine)
    (let ((calls (list 0)) (others (list 0)) (here (list 0)) (thread sb-thread:*current-thread*))
      (dotimes (i 300)
        (add-ear engine (format nil "b~D" i) (lambda () (sb-ext:atomic-incf (car others)))))
      (dotimes (i 50)
        (add-ear engine "a" (lambda ()
                              (sb-ext:atomic-incf (car calls))
                              (when (eq thread sb-thread:*current-thread*) (incf (car here))))))
      (etcd:put *etcd* "a" "x")
      (eventually (= 50 (car calls)))
      (is (<= (car here) memory::+called-at-once+))
      (etcd:put *etcd* "b7" "x")
      (is (= 1 (car others)))
      (is (= 50 (car calls))))))

(test many-changes-call-many-watches
  "Of a revision with so many changes, around whose keys so many watches are, that looking at each
pair would take long, every watch hears, also one that it does not concern; each hears once."
  (with-engine (engine)
    (let ((store (memory::engine-store engine)) (watches 0))
      (flet ((watch-range (start end)
               (let ((watch (watch-of (string-octets start) (string-octets end)
                                      (memory::next-serial engine))))
                 (incf watches)
                 (setf (memory::watch-next watch) 2
                       (memory::watch-caught-up watch) t)
                 (memory::with-engine (engine) (memory::add-watch engine watch)))))
        (loop repeat 200 do (watch-range "many" "n"))
        (watch-range "nobody's" "o"))
      (let ((listeners (memory::with-engine (engine)
                         (put-many store 2000)
                         (setf (memory::engine-told engine) (memory::store-revision store))
                         (memory::note-changes (memory::engine-watches engine) store 2))))
        (is (= watches (length listeners)))
        (is (= watches (length (remove-duplicates listeners))))))))

(test errors-of-listeners-are-their-own
  "A listener's error is logged: the Put that called it is done, other listeners are called, and so
does the engine's thread go on."
  (with-engine (engine)
    (let* ((calls (list 0))
           (events '())
           (lock (sb-thread:make-mutex))
           ;; of any thread: few are logged, and those may be the engine's
           (listener (fn (_level event &rest _plist)
                       (sb-thread:with-mutex (lock) (push event events)))))
      (base:add-log-listener listener)
      (unwind-protect
           (progn
             (dotimes (i (* 2 memory::+called-at-once+))
               (add-ear engine "a" (lambda ()
                                     (sb-ext:atomic-incf (car calls))
                                     (error "a listener's error"))))
             (dotimes (i 2)
               (is (= (+ 2 i) (etcd:put *etcd* "a" "x")))
               (eventually (= (* (1+ i) 2 memory::+called-at-once+) (car calls)))))
        (base:remove-log-listener listener))
      (sb-thread:with-mutex (lock)
        (is-true (member :memory-listener-error events))))))
