;;;; Many seeds: what is broken on purpose is found, and the story is told; what is not broken runs
;;;; some hundred seeds of the mix, and a thousand in make endurance.

(in-package #:clgrpc.tests.sim)

(defun story-of (count)
  "The story of the first of COUNT seeds for which the mix fails, or nil."
  (handler-case (progn (apply #'sim:run-seeds 'run-mix :count count *mix-options*)
                       nil)
    (sim:seed-failed (failure) (princ-to-string failure))))

(defun call-with-mutant (name function body)
  "Call BODY while NAME, the name of a function, means FUNCTION, of that function and its
arguments."
  (with-replaced ((name function)) (funcall body)))

(test a-wrong-answer-is-found-and-its-story-told
  (let ((story (call-with-mutant 'handle-ask
                                 (lambda (handle mix note call)
                                   (if (= 77 (mod (lab:note-number note) 100))
                                       (message-of (begun-job mix note) 2)
                                       (funcall handle mix note call)))
                                 (lambda () (story-of 1)))))
    (is (null story)))
  (let ((story (call-with-mutant 'message-of
                                 (lambda (make job index)
                                   ;; now and then the octets of another message
                                   (if (and (= 7 (job-number job)) (= 1 index))
                                       (lab:make-note :number (+ 1 (* +messages+ 7)) :text "mix"
                                                      :body (make-octets 3))
                                       (funcall make job index)))
                                 (lambda () (story-of 20)))))
    (is (search "message 1 is not what was sent" story))
    (is (search "job 7 ended: ok" story))
    (is (search "frame-received" story))
    (is (search "(run-seeds run-mix :first " story))))

(test a-broken-deadline-is-found
  (let ((story (call-with-mutant 'wire::schedule-deadline (constantly nil)
                                 (lambda () (story-of 50)))))
    (is (search "after its deadline" story))))

(test an-early-end-is-found
  "A server that stops without letting its calls end, though it says that it does."
  (let ((story (call-with-mutant 'server::drain-link
                                 (fn (_drain link)
                                   (wire:close-link link "going" :status :unavailable))
                                 (lambda () (story-of 300)))))
    (is (search "no fault explains" story))))

(test a-call-made-again-is-found
  "Of streams what has been sent is not kept, so that they cannot be made again."
  (let ((story (call-with-mutant 'client::repeatable-p (constantly t)
                                 (lambda () (story-of 200)))))
    (is (search "which ended with" story))))

(test octets-that-stay-charged-are-found
  (let ((story (call-with-mutant 'wire::release-inbound (constantly nil)
                                 (lambda () (story-of 200)))))
    (is (search "octets charged" story))))

(test the-story-says-when-it-cannot-be-told-again
  "A scenario that does not depend on its seed alone."
  (let ((count 0))
    (handler-case (sim:run-seeds (fn (_simulation) (when (= 3 (incf count)) (error "Only now.")))
                                 :count 5)
      (sim:seed-failed (failure)
        (is (= 3 (sim:seed-failed-seed failure)))
        (is (search "Only now. But not when it was run again" (princ-to-string failure)))))
    ;; once more with each list of tracers
    (is (= 6 count))))

(test (seeds-of-the-mix :suite :clgrpc.sim.seeds)
  (let ((count (support:at-length 300 1000)))
    (is (= count (apply #'sim:run-seeds 'run-mix :count count *mix-options*)))))
