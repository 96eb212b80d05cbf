;;;; TUNE-COLLECTOR does what its docstring promises; the image is restored afterwards.

(in-package #:clgrpc.tests.base)

(defun resident-octets ()
  (with-open-file (in "/proc/self/statm")
    (read in)
    (* 4096 (read in))))

(defun call-tuned (function)
  "Call FUNCTION, which tunes the collector, and restore the collector's settings."
  (let ((nursery (sb-ext:bytes-consed-between-gcs))
        (second (sb-ext:generation-bytes-consed-between-gcs 1))
        (third (sb-ext:generation-bytes-consed-between-gcs 2))
        (times (sb-ext:generation-number-of-gcs-before-promotion 1))
        (limit (sb-sys:find-foreign-symbol-address "small_generation_limit")))
    (unwind-protect (funcall function)
      (setf (sb-ext:bytes-consed-between-gcs) nursery
            (sb-ext:generation-bytes-consed-between-gcs 1) second
            (sb-ext:generation-bytes-consed-between-gcs 2) third
            (sb-ext:generation-number-of-gcs-before-promotion 1) times)
      (when limit (setf (sb-sys:sap-ref-8 (sb-sys:int-sap limit) 0) 1))
      (sb-ext:gc :gen 1))))

(defmacro with-tuned-collector (&body body)
  "Evaluate BODY as CALL-TUNED does."
  `(call-tuned (lambda () ,@body)))

(defvar *records* '() "Many small live objects.")

(test early-collections-copy-little
  "Each time much is fresh, only new objects are copied: survivors become old, and are not copied
again with later survivors, nor when much is old."
  (with-tuned-collector
    (setf (sb-ext:generation-bytes-consed-between-gcs 2) 50000000)
    (sb-ext:gc :gen 3)
    (setf *records* '())
    (loop repeat 5
          for old = (sb-ext:generation-bytes-allocated 2)
          do (push (loop for i below 1500000 collect i) *records*) ; 24 MB
             (clgrpc.base::collect-young)
             (is (< (sb-ext:generation-bytes-allocated 1) 4000000))
             (is (< (+ old 23000000) (sb-ext:generation-bytes-allocated 2))))
    (is (= 5 (length *records*)))
    (setf *records* '())))

(test old-garbage-is-collected-alone
  "Objects made old by early collections are collected once they are many, soon if few are held."
  (with-tuned-collector
    (tune-collector)
    (let* ((eighth (floor (heap-size) 8))
           (account (make-account **process-account**))
           (before (sb-ext:generation-bytes-allocated 2)))
      (flet ((make-old (octets)
               (loop while (< (sb-ext:generation-bytes-allocated 2) (+ before octets))
                     do (setf *records* (loop for i below 1500000 collect i))
                        (clgrpc.base::collect-young))))
        (unwind-protect
             (progn
               (clgrpc.base::collect-old)
               (is-false (clgrpc.base::old-garbage-due-p))
               (make-old (+ eighth 30000000))
               (is-true (clgrpc.base::old-garbage-due-p))
               (charge-own account 30000000)
               (is-false (clgrpc.base::old-garbage-due-p))
               (charge-own account -30000000)
               (setf *records* '())
               (collect-due-generation #'funcall)
               (is (< (sb-ext:generation-bytes-allocated 2) (+ before eighth)))
               (is-false (clgrpc.base::old-garbage-due-p)))
          (setf *records* '())
          (close-account account))))))

(test what-is-held-anew-is-collected-early
  "This holds even after much was held and released, as when many peers leave and others come; not
for long vectors, which no collection copies."
  (with-tuned-collector
    (tune-collector)
    (let ((accounts (loop repeat 2 collect (make-account **process-account**)))
          (step (+ 1000000 clgrpc.base::+early-octets+)) (epoch nil))
      (flet ((collected-p (function)
               (setf epoch (collection-epoch))
               (funcall function)
               (not (eq epoch (collection-epoch)))))
        (destructuring-bind (one other) accounts
          (unwind-protect
               (progn
                 (setf *records* (loop for i below 2000000 collect i)) ; 32 MB
                 (is-true (collected-p (lambda () (charge-own one step))))
                 (setf *records* (loop for i below 2000000 collect i))
                 (is-true (collected-p (lambda ()
                                         (loop repeat 20
                                               do (charge-own one (- (floor step 20)))
                                                  (charge-own other (ceiling step 20))))))
                 (setf *records* (loop repeat 4 collect (make-octets 8000000)))
                 (is-false (collected-p (lambda () (charge-own one step)))))
            (setf *records* '())
            (mapc #'close-account accounts)))))))

(test full-collections-are-worth-their-time
  "Objects that are live when the collector is tuned are not copied again; a full collection of much
live data is due when there is twice as much."
  (with-tuned-collector
    (setf *records* (loop for i below 4000000 collect i)) ; 64 MB
    (tune-collector)
    (when (fboundp 'sb-kernel:generation-of)
      (is (= sb-vm:+highest-normal-generation+ (sb-kernel:generation-of (nthcdr 1000 *records*)))))
    (is-false (clgrpc.base::full-collection-due-p))
    (let ((live (heap-used))
          (more (loop for i below 3000000 collect i))) ; 48 MB
      (is (< (* 5 live) (* 4 (heap-used)) (* 8 live)))
      (is-false (clgrpc.base::full-collection-due-p))
      (let ((most (loop for i below (floor live 16) collect i)))
        (is-true (clgrpc.base::full-collection-due-p))
        (is (< 0 (length most))))
      (is (= 3000000 (length more))))
    (setf *records* '())))

(test free-pages-are-returned
  "They are returned in steps, each from where the last has ended, and no live object is lost."
  (with-tuned-collector
    (tune-collector)
    (let ((kept (loop for i below 50 collect (fill (make-octets 100000) (mod i 256)))))
      (dotimes (i 100) (fill (make-octets 1000000) 1))
      (sb-ext:gc :gen 2)
      (let ((before (resident-octets))
            (steps (loop with page = 0
                         while page
                         count t
                         do (setf page (clgrpc.base::return-some-pages page)))))
        (is (<= 1 steps))
        (is (< (resident-octets) (- before 50000000))))
      (is (loop for octets in kept
                for i from 0
                always (every (lambda (octet) (= octet (mod i 256))) octets))))))

(test calm-processes-give-back
  "A process that has consed little for five seconds is calm, one that has consed much is not."
  (let ((quiet-period (clgrpc.base::make-quiet-period)))
    (flet ((quiet-p (&key (later 0))
             (decf (clgrpc.base::quiet-period-since-ns quiet-period)
                   (min later (clgrpc.base::quiet-period-since-ns quiet-period)))
             (clgrpc.base::quiet-p quiet-period)))
      (is-false (quiet-p))
      (is-false (quiet-p :later (seconds-ns 4)))
      (is-true (quiet-p :later (seconds-ns 2)))
      (is-false (quiet-p))
      (setf *records* (make-octets 30000000))
      (is-false (quiet-p :later (seconds-ns 6)))
      (is-true (quiet-p :later (seconds-ns 6)))
      (setf *records* '())
      (sb-ext:gc)
      (is-false (quiet-p :later (seconds-ns 6))))))

(test tuned-collector
  "A tuned collector has its sizes, and returns freed pages only when it collects everything."
  (with-tuned-collector
    (tune-collector)
    (is (<= (sb-ext:bytes-consed-between-gcs) clgrpc.base::+nursery-octets+))
    (is (= (floor (sb-ext:dynamic-space-size) 8)
           (sb-ext:generation-bytes-consed-between-gcs 2)))
    (dotimes (i 100) (fill (make-octets 1000000) 1))
    (sb-ext:gc :gen 2)
    (let ((kept (resident-octets)))
      (sb-ext:gc :full t)
      (is (< (resident-octets) (- kept 50000000))))))

(test the-first-nursery-beside-much-data-is-small
  (with-tuned-collector
    (let ((much (make-octets (+ 1000 clgrpc.base::+much-data-octets+))))
      (tune-collector)
      (is (= clgrpc.base::+least-nursery-octets+ (sb-ext:bytes-consed-between-gcs)))
      (is (= 0 (aref much 0))))))

(test nurseries-fit
  "A nursery is large if collections take more than a hundredth of the time, small again below a
four-hundredth, and smaller while each takes more than 10 ms; a size set by the user stays."
  (flet ((fitting (megabytes ms &rest shares)
           (mapcar (lambda (share)
                     (floor (clgrpc.base::fitting-nursery (* megabytes 1024 1024) share
                                                          (* ms 1000000))
                            (* 1024 1024)))
                   shares)))
    (is (equal '(64 64 100 100 200) (fitting 100 10 0 1/401 1/400 1/100 11/1000)))
    (is (equal '(64 64 100 100 100 200) (fitting 100 11 0 1/201 1/200 1/100 1/50 21/1000)))
    (is (equal '(40 40 40) (fitting 20 4 0 1/100 11/1000)))
    (is (equal '(20 20 40) (fitting 20 5 0 1/100 11/1000)))
    (is (equal '(64 40 64) (append (fitting 40 4 0) (fitting 40 5 0) (fitting 40 5 11/1000))))
    (is (equal '(20 20 40 40 40 64) (fitting 40 11 0 1/201 1/200 1/100 1/50 21/1000)))
    ;; half of it might take twice the share, in collections of 6 ms, and would be doubled again
    (is (equal '(64 64) (append (fitting 64 11 99/10000) (fitting 32 6 198/10000))))
    (is (equal '(8 8 8 16) (fitting 8 11 0 1/100 1/50 21/1000))))
  (with-tuned-collector
    (tune-collector)
    (let ((least (sb-ext:bytes-consed-between-gcs))
          (watch (make-collector-watch)))
      (flet ((collect (&key (ns 0) (us (floor ns 2000)) (collections 0))
               ;; as if NS had passed, and US of it in as many COLLECTIONS, by default half of it
               (decf (clgrpc.base::collector-watch-ns watch) ns)
               (decf (clgrpc.base::collector-watch-run-time watch) us)
               (decf (clgrpc.base::collector-watch-consed watch)
                     (* collections (sb-ext:bytes-consed-between-gcs)))
               (sb-ext:gc :gen 1)
               (retune-collector watch)
               (sb-ext:bytes-consed-between-gcs)))
        (is (<= least clgrpc.base::+nursery-octets+))
        (is (= least (collect)))        ; nothing is known yet
        (decf (clgrpc.base::collector-watch-ns watch) (seconds-ns 1000))
        (is (= least (collect)))        ; a thousand seconds, and nearly none for collections
        (is (< least (collect :ns 10000000)))
        (retune-collector watch)         ; no collection since
        (is (< least (sb-ext:bytes-consed-between-gcs)))
        (clgrpc.base::give-memory-back)
        (is (= least (sb-ext:bytes-consed-between-gcs)))
        ;; twenty collections of 2.5 ms, one of 200 ms, thirty of 7 ms
        (is (= least (collect :ns 60000000000 :us 50000 :collections 20)))
        (is (= (floor least 2) (collect :ns 60000000000 :us 200000)))
        (is (= (floor least 2) (collect :ns 60000000000 :us 200000 :collections 30)))
        (incf clgrpc.base::**time-aside** 50000) ; a collection of an idle process
        (is (= least (collect :ns 10000000)))
        ;; a program has set *GC-RUN-TIME* back
        (incf (clgrpc.base::collector-watch-run-time watch) 1000000000)
        (is (= least (collect)))
        (setf (sb-ext:bytes-consed-between-gcs) (* 64 1024 1024))
        (is (= (* 64 1024 1024) (collect :ns 10000000)))
        (setf (sb-ext:bytes-consed-between-gcs) 30000000)
        (is (= 30000000 (collect :ns 10000000)))))))

(test where-the-world-cannot-be-stopped-no-pages-are-returned
  "The thread that returns pages step by step would never end."
  (let ((steps 0))
    (with-replaced (('clgrpc.base::stoppable-world-p (constantly nil))
                    ('clgrpc.base::return-some-pages
                     (fn (_function page) (if (< (incf steps) 10) page nil))))
      (clgrpc.base::return-free-pages))
    (is (= 0 steps))))
