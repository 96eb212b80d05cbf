;;;; Accounts report to their parents in steps, without losses, and report an excess.

(in-package #:clgrpc.tests.base)

(test accounts-tell-in-steps
  "A parent knows a connection's charges to within a step, or exactly if it is closed."
  (let* ((all (make-account)) (peer (make-account all)) (link (make-account peer))
         (step clgrpc.base::+account-step+))
    (charge-own link step)
    (is (= step (account-sum link)))
    (is (zerop (account-sum peer)))
    (charge-account link 1)
    (is (= (1+ step) (account-sum link) (account-sum peer) (account-sum all)))
    (charge-own link (- (ash step -3)))
    (is (= (1+ step) (account-sum all)))
    (discharge-account link 1)
    (is (= (- step (ash step -3)) (account-sum link) (account-sum all))
        "What is idle counts as little more than it holds, whatever it held before.")
    (charge-own link (- (account-sum link)))
    (is (zerop (account-sum all)))
    (charge-own link 5)
    (charge-account link 7)
    (close-account link)
    (is (= 7 (account-sum peer) (account-sum all)) "What others have charged they take off.")
    (discharge-account link 7)
    (is (zerop (account-sum peer)))))

(test accounts-tell-of-excess
  "An excess is reported as often as a part charges more than allowed."
  (let* ((all (make-account)) (link (make-account all)) (told 0))
    (call-on-excess all 100000 (lambda () (incf told)))
    (charge-own link 100000)
    (is (zerop told))
    (charge-own link 20000)
    (is (= 1 told))
    (charge-own link -60000)
    (is (= 1 told))))

(test accounts-add-up
  "Threads charge and uncharge at the same time, and the connection is closed meanwhile."
  (let* ((all (make-account))
         (links (loop repeat 3 collect (make-account all)))
         (threads (loop for i below 4
                        collect (let ((seed i))
                                  (in-thread (let ((random (sb-ext:seed-random-state seed)))
                                               (loop repeat 20000
                                                     for link = (nth (random 3 random) links)
                                                     for octets = (random 40000 random)
                                                     do (charge-account link octets)
                                                        (discharge-account link octets))))))))
    (loop repeat 10000 do (charge-own (first links) 20000) (charge-own (first links) -20000))
    (mapc #'close-account links)
    (mapc #'sb-thread:join-thread threads)
    (mapc #'close-account links)
    (is (zerop (account-sum all)))
    (is (every #'zerop (mapcar #'account-sum links)))))

(defmacro counted-fresh (&body body)
  "The value of BODY, in which FRESH returns the octets counted as fresh."
  `(flet ((fresh () (car clgrpc.base::**fresh**)))
     (sb-sys:without-gcing ,@body)))

(test what-is-fresh-is-counted
  "The octets of a connection beyond its least value since the last collection count, whatever it
has held before, and whatever others hold."
  (let ((links (loop repeat 2 collect (make-account **process-account**))))
    (destructuring-bind (one other) links
      (charge-own one 5000000)
      (sb-ext:gc)
      (unwind-protect
           (is (equal '(0 3000000 6000000 5000000 5000000)
                      (counted-fresh
                        (charge-own one -4000000)
                        (list (fresh)
                              (progn (charge-own one 3000000) (fresh))
                              (progn (charge-own other 3000000) (fresh))
                              (progn (charge-own one -1000000) (fresh))
                              (progn (charge-own one -3000000)
                                     (charge-own one 2000000)
                                     (fresh))))))
        (mapc #'close-account links)))))
